"""Mutation testing: does a test fail if an operator, a constant or a statement is changed?

    python tests/mutation/mutants.py [FILE ...] --workers 2 --out mutants.jsonl

One process imports torch and collects the tests; every mutant is a fork of it in which the code of
one function is replaced, so that a mutant costs no more than its tests. First, each test is run
once to find out which functions it calls and how long it takes; a mutant is tried against the tests
that call its function, until one fails. Mutants are tried in random order, so that those tried
within `--time-limit` are a fair sample. The same command continues where it stopped.

Writes one JSON line per mutant: file, function, line, column, the change, and whether it was
killed (by which test), survived, exceeded its time or could not be applied. Not mutated: constants,
default values and decorators outside of functions, messages of exceptions, `__repr__`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    *("src/perdure/learners", "src/perdure/memory", "src/perdure/evaluation"),
    *("src/perdure/state.py", "src/perdure/files.py", "src/perdure/undo.py"),
    "src/perdure/training/checkpoint.py",
]
TESTS = [
    *("tests/learners", "tests/memory", "tests/evaluation", "tests/training", "tests/faults"),
    *("tests/test_state.py", "tests/test_files.py", "tests/test_records.py"),
    *("tests/test_structures.py", "tests/test_testing.py"),
    *("src/perdure/learners", "src/perdure/memory", "src/perdure/evaluation"),
]
IGNORED = [
    *("tests/learners/test_export.py", "tests/training/test_distributed.py"),
    *("tests/faults/test_kill.py", "tests/faults/test_kill_commands.py"),
    *("tests/faults/test_processes.py", "tests/faults/test_threads.py"),
]
"""Tests of other processes, which are not mutated, and of chance."""
DIRECT = {
    "checks": "test_inputs.py",
    "consistency": "test_clser.py",
    "episodic": "test_reservoir.py",
    "gradient_buffer": "test_gss.py",
    "gradient_similarity": "test_gss.py",
    "exemplars": "test_icarl.py",
    "task_buffer": "test_fdr.py",
    "undo": "test_step.py",
}
"""Test files that come first, for modules without one of the same name."""
HANGS = 1800.0
"""Seconds after which a process that computes nothing is killed."""
LONGEST = 10.0
"""Seconds of the longest test that is used."""

Key = tuple[str, str, int]
"""A function: file, qualified name and first line."""


# -- mutants --------------------------------------------------------------------------------

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One change to a file; `number` counts the changes of the file."""

    file: str
    function: str
    first_line: int
    line: int
    column: int
    change: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.change}"


Change = tuple[ast.AST, str, Callable[[], None]]
"""Where a change is, what it is, and a function that makes it."""


def _functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, int, ast.AST]]:
    """The outermost functions of a module: qualified name, first line and node."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and node.name != "__repr__":
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield prefix + node.name, first, node


def _changes(node: ast.AST) -> Iterator[Change]:
    """All changes below a node."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            node, ast.Call
        ):
            continue
        children = value if isinstance(value, list) else [value]
        for place, child in enumerate(children):
            if not isinstance(child, ast.AST):
                continue

            def put(new: ast.AST, name: str = name, value: Any = value, place: int = place) -> None:
                if isinstance(value, list):
                    value[place] = new
                else:
                    setattr(node, name, new)

            yield from _changes_of(child, put)
            if not isinstance(child, ast.Raise | ast.JoinedStr):  # messages
                yield from _changes(child)


def _changes_of(node: Any, put: Callable[[ast.AST], None]) -> Iterator[Change]:
    text = ast.unparse(node) if hasattr(node, "lineno") else ""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if swap := SWAPS.get(type(operator)):
                yield _in_list(node, node.ops, place, swap())
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
        new_operator = SWAPS[type(node.op)]()
        change = f"{text} [{type(node.op).__name__} -> {type(new_operator).__name__}]"
        yield node, change, lambda: setattr(node, "op", new_operator)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, f"{text} -> {ast.unparse(node.operand)}", lambda: put(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = node.value
        news = [not value] if isinstance(value, bool) else [value + 1, value - 1]
        for new in news:
            yield node, f"{text} -> {new}", partial(setattr, node, "value", new)
    elif isinstance(node, ast.Call):
        first_two = node.args[:2]
        symmetric = isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
        if (
            len(first_two) == 2
            and not symmetric
            and not any(isinstance(a, ast.Starred) for a in first_two)
        ):
            yield (
                node,
                f"{text} [arguments swapped]",
                lambda: node.args.__setitem__(slice(0, 2), first_two[::-1]),
            )
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        test = node.test
        negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
        change = f"if {ast.unparse(test)} [negated]"
        yield node, change, lambda: setattr(node, "test", negated)
    if _is_removable(node):
        removed = ast.copy_location(ast.If(ast.Constant(False), [node], []), node)
        yield node, f"{text} [removed]", lambda: put(removed)


def _in_list(node: ast.Compare, operators: list[Any], place: int, new: ast.cmpop) -> Change:
    change = f"{ast.unparse(node)} [{type(operators[place]).__name__} -> {type(new).__name__}]"
    return node, change, lambda: operators.__setitem__(place, new)


def _is_removable(node: ast.AST) -> bool:
    """Whether this is a statement whose removal may go unnoticed."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant | ast.Yield)
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Return)


def find_mutants(file: str, source: str) -> Iterator[tuple[Mutant, ast.Module, Callable[[], None]]]:
    """All mutants of a file, the tree that they change, and functions that make the changes."""
    tree, number = ast.parse(source), 0
    for function, first, body in _functions(tree.body):
        for node, change, apply in _changes(body):
            line, column = getattr(node, "lineno", first), getattr(node, "col_offset", 0)
            words = " ".join(change.split())
            yield Mutant(file, function, first, line, column, words, number), tree, apply
            number += 1


def mutated_code(mutant: Mutant, change: bool = True) -> CodeType:
    """The code of the function, with or without the change."""
    path = ROOT / mutant.file
    found = list(find_mutants(mutant.file, path.read_text()))[mutant.number]
    assert found[0] == mutant
    if change:
        found[2]()
    codes = [compile(ast.fix_missing_locations(found[1]), str(path), "exec")]
    for code in codes:
        if (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.first_line):
            return code
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    raise LookupError(mutant.name)


@cache
def live_functions() -> dict[Key, list[FunctionType]]:
    """All functions in memory, by place; called before the process is forked."""
    found: dict[Key, list[FunctionType]] = {}
    for function in gc.get_objects():
        if type(function) is FunctionType:  # isinstance would execute code of odd objects
            found.setdefault(_place(function.__code__), []).append(function)
    return found


def apply(mutant: Mutant, change: bool = True) -> None:
    """Replace the code of the function in this process, wherever it is used."""
    code = mutated_code(mutant, change)
    place = (str(ROOT / mutant.file), mutant.function, mutant.first_line)
    for function in live_functions()[place]:
        function.__code__ = code


def _place(code: CodeType) -> Key:
    return code.co_filename, code.co_qualname, code.co_firstlineno


@contextlib.contextmanager
def recording() -> Iterator[set[CodeType]]:
    """Collects the code of all functions called inside."""
    codes: set[CodeType] = set()
    if sys.version_info >= (3, 12):  # notes a function once, so that it costs little
        monitoring, tool = sys.monitoring, 4

        def start(code: CodeType, _: int) -> Any:
            codes.add(code)
            return monitoring.DISABLE

        monitoring.use_tool_id(tool, "mutants")
        monitoring.register_callback(tool, monitoring.events.PY_START, start)
        monitoring.set_events(tool, monitoring.events.PY_START)
        monitoring.restart_events()
        try:
            yield codes
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)
        return

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.settrace(note)
    sys.settrace(note)
    try:
        yield codes
    finally:
        sys.settrace(None)
        threading.settrace(None)


# -- trying them ----------------------------------------------------------------------------


@dataclass
class Known:
    """What is known about a test: seconds, and the functions that it calls, by file and name."""

    seconds: float
    calls: set[tuple[str, str]]


class Tester:
    """A pytest plugin that tries mutants instead of running the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out = Path(options.out)
        self.deadline = time.monotonic() + options.time_limit
        self.on_failure: Callable[[str], None] = lambda name: None
        self.known: dict[str, Known] = {}
        self.items: dict[str, pytest.Item] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.on_failure(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        print(f"{len(self.items)} tests", flush=True)
        self.learn_calls()
        self.try_mutants()
        return True

    # .. what tests call

    def learn_calls(self) -> None:
        """Run every test once, unless that was done before, and record what it calls."""
        path = self.out.with_suffix(".calls.json")
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        files: dict[str, list[pytest.Item]] = {}
        for name, item in self.items.items():
            if name not in found:
                files.setdefault(name.partition("::")[0], []).append(item)
        jobs = [f[i : i + 40] for f in files.values() for i in range(0, len(f), 40)]
        with tempfile.TemporaryDirectory() as folder:
            work = partial(self.record, folder=Path(folder))
            for job in self.run_children(jobs, work):
                print(job.status, job.what[0].nodeid.partition("::")[0], flush=True)
            for part in Path(folder).iterdir():
                found |= json.loads(part.read_text())
        path.write_text(json.dumps(found))
        for name, (seconds, calls) in found.items():
            if name in self.items and seconds <= LONGEST:
                self.known[name] = Known(seconds, {(file, function) for file, function, _ in calls})
        print(f"{len(self.known)} tests of {sum(k.seconds for k in self.known.values()):.0f} s")

    def record(self, items: list[pytest.Item], folder: Path) -> None:
        """In a child: run tests of one file; those that fail are not used."""
        failed: set[str] = set()
        self.on_failure = failed.add
        found: dict[str, tuple[float, list[Key]]] = {}
        prefix = f"{ROOT}/src/perdure/"
        for item, following in zip(items, [*items[1:], None], strict=True):
            began = time.monotonic()
            with recording() as codes:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            places = (_place(code) for code in codes if code.co_filename.startswith(prefix))
            calls = [(str(Path(p[0]).relative_to(ROOT)), p[1], p[2]) for p in places]
            seconds = time.monotonic() - began if item.nodeid not in failed else 1e9
            found[item.nodeid] = seconds, calls
        (folder / str(os.getpid())).write_text(json.dumps(found))

    # .. mutants

    def try_mutants(self) -> None:
        mutants = list(self.mutants())
        done: dict[str, str] = {}
        if self.out.exists():
            lines = [json.loads(line) for line in self.out.read_text().splitlines()]
            done = {line["name"]: line["status"] for line in lines}
        if self.options.survivors_of:
            lines = [
                json.loads(x) for x in Path(self.options.survivors_of).read_text().splitlines()
            ]
            lived = [line for line in lines if line["status"] == "survived"]
            chosen = {(line["file"], line["function"], line["change"]) for line in lived}
            mutants = [m for m in mutants if (m.file, m.function, m.change) in chosen]
        todo = [mutant for mutant in mutants if mutant.name not in done]
        print(f"{len(mutants)} mutants, {len(todo)} to try", flush=True)
        live_functions()
        for job in self.run_children(todo[:2], partial(self.attempt, change=False)):
            if job.status != "survived":
                sys.exit(f"a test fails without a change: {job.message}")
        counts: Counter[str] = Counter()
        began = time.monotonic()
        with self.out.open("a") as file:
            for job in self.run_children(todo, self.attempt):
                entry = {**asdict(job.what), "name": job.what.name, "status": job.status}
                entry |= {"test": job.message, "seconds": round(job.seconds, 2)}
                file.write(json.dumps(entry) + "\n")
                file.flush()
                counts[job.status] += 1
                if counts.total() % 100 == 0:
                    print(dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)
        print(dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)

    def mutants(self) -> Iterator[Mutant]:
        """Those of this shard, in random order."""
        paths: list[Path] = []
        for name in self.options.files or SOURCES:
            paths += [ROOT / name] if name.endswith(".py") else (ROOT / name).glob("*.py")
        found: list[Mutant] = []
        for path in sorted(paths):
            file = str(path.relative_to(ROOT))
            found += [mutant for mutant, _, _ in find_mutants(file, path.read_text())]
        found = list({mutant.name: mutant for mutant in found}.values())
        random.Random(self.options.seed).shuffle(found)
        index, count = map(int, self.options.shard.split("/"))
        yield from found[index - 1 :: count]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that call the function: the most direct and the fastest files first."""
        names = [
            name
            for name, known in self.known.items()
            if (mutant.file, mutant.function) in known.calls
        ]
        files: dict[str, list[str]] = {}
        for name in names:
            files.setdefault(name.partition("::")[0], []).append(name)
        stem = Path(mutant.file).stem
        direct = DIRECT.get(stem, f"test_{stem}.py")

        def order(file: str) -> tuple[bool, float]:
            seconds = sum(self.known[name].seconds for name in files[file])
            return Path(file).name != direct, seconds

        chosen, total = list[str](), 0.0
        for name in (name for file in sorted(files, key=order) for name in files[file]):
            total += self.known[name].seconds
            if total > self.options.seconds_per_mutant and chosen:
                break
            chosen.append(name)
        return chosen

    def attempt(self, mutant: Mutant, change: bool = True) -> str | None:
        """In a child: run tests until one fails."""
        names = self.tests_of(mutant)
        seconds = round(20 + 5 * self.options.seconds_per_mutant)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        try:
            apply(mutant, change)
        except (LookupError, ValueError, SyntaxError) as error:
            return f"invalid {error}"
        self.on_failure = lambda name: end(f"killed {name}")
        for name, following in zip(names, [*names, None][1:], strict=True):
            signal.setitimer(signal.ITIMER_PROF, 5 + 10 * self.known[name].seconds)
            item, after = self.items[name], self.items[following] if following else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return f"survived {len(names)} tests"

    # .. processes

    def run_children(
        self,
        jobs: Sequence[Any],
        work: Callable[[Any], str | None],
    ) -> Iterator[Job]:
        """Do each job in a fork of this process, several at a time."""
        waiting, running = list(reversed(jobs)), dict[int, Job]()
        while (waiting and time.monotonic() < self.deadline) or running:
            while waiting and len(running) < self.options.workers:
                if time.monotonic() > self.deadline:
                    break
                job = Job(waiting.pop(), self, work)
                running[job.pid] = job
            for job in list(running.values()):
                if time.monotonic() - job.began > HANGS:
                    job.kill()
                if job.ended():
                    del running[job.pid]
                    yield job
            time.sleep(0.005)


def end(message: str) -> None:
    """Leave a child; the message goes to the parent."""
    os.write(MESSAGES, message.encode()[:2000])
    os._exit(0)


MESSAGES = 100
"""File descriptor in a child that leads to the parent."""


class Job:
    """A child process and what it does."""

    def __init__(self, what: Any, tester: Tester, work: Callable[[Any], str | None]) -> None:
        self.what, self.began = what, time.monotonic()
        self.status = self.message = ""
        self.folder = tempfile.mkdtemp(prefix="mutant-")
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                os.dup2(writer, MESSAGES)
                nothing = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(nothing, descriptor)
                limit = resource.getrlimit(resource.RLIMIT_AS)[1]
                resource.setrlimit(resource.RLIMIT_AS, (32 * 2**30, limit))
                factory = next(iter(tester.items.values())).config._tmp_path_factory  # type: ignore[attr-defined]
                factory._basetemp = Path(self.folder)
                end(work(what) or "done")
            except BaseException as error:
                end(f"invalid {type(error).__name__}: {error}")
        os.close(writer)

    def ended(self) -> bool:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return False
        with contextlib.suppress(ProcessLookupError):  # what its tests started
            os.killpg(self.pid, signal.SIGKILL)
        self.seconds = time.monotonic() - self.began
        text = os.read(self.reader, 4000).decode(errors="replace")
        os.close(self.reader)
        shutil.rmtree(self.folder, ignore_errors=True)
        if not text:
            code = os.waitstatus_to_exitcode(status)
            late = code in (-signal.SIGPROF, -signal.SIGXCPU, -signal.SIGKILL)
            text = f"{'timeout' if late else 'killed'} exit status {code}"
        self.status, _, self.message = text.partition(" ")
        return True

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", help="files to mutate, relative to the repository")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files and folders of tests")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--shard", default="1/1", help="I/N: only each N-th mutant, from the I-th")
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds for everything")
    parser.add_argument("--seconds-per-mutant", type=float, default=20, help="of tests, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the mutants")
    parser.add_argument("--survivors-of", help="only the changes that survived in this file")
    parser.add_argument("--out", default="mutants.jsonl")
    options = parser.parse_args()
    options.out = str(Path(options.out).absolute())
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "src"))
    sys.exit(
        pytest.main(
            [
                *options.tests,
                *(f"--ignore={name}" for name in IGNORED),
                *("-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"),
                "--continue-on-collection-errors",
            ],
            plugins=[Tester(options)],
        )
    )


if __name__ == "__main__":
    main()
