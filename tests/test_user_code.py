"""Objects that a user refers to as module:name, and hashes of their source."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from perdure.user_code import accepts, describe_error, find_object, source_hash


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in ("mine", "faulty"):
        sys.modules.pop(name, None)


def test_modules_in_the_current_folder_are_found(here: Path) -> None:
    (here / "mine.py").write_text("class Outer:\n    inner = 7\n")
    assert find_object("mine:Outer.inner", "method") == 7
    assert find_object("os.path:join", "function")("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (":", "method ':'; expected module:name"),
        ("mine", "method 'mine'; expected module:name"),
        ("mine.py:Method", "as in mine:Method"),
        ("mine:", "method 'mine:'; expected module:name"),
        (":x", "method ':x'; expected module:name"),
        ("mine:x", "method 'mine:x': mine has no 'x'"),
        ("mine:value.real.x", "method 'mine:value.real.x': mine has no 'value.real.x'"),
        ("nowhere:x", "method 'nowhere:x': No module named 'nowhere'"),
        ("mine.deeper:x", "No module named 'mine.deeper'; 'mine' is not a package"),
    ],
)
def test_invalid_references_are_rejected(reference: str, expected: str, here: Path) -> None:
    (here / "mine.py").write_text("value = 1\n")
    with pytest.raises(ValueError, match=re.escape(expected)):
        find_object(reference, "method")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import nothing_of_the_kind", "No module named 'nothing_of_the_kind'"),
        ("def (", "invalid syntax (faulty.py, line 1)"),
        ("\n\n{}['key']", "KeyError: 'key' (faulty.py, line 3)"),
        ("raise AttributeError('odd')", "AttributeError: odd (faulty.py, line 1)"),
        ("import sys\nsys.exit()", "importing faulty ends the program"),
        ("raise SystemExit('no libfoo')", "importing faulty ends the program; no libfoo"),
    ],
)
def test_errors_in_a_users_module_are_reported(source: str, expected: str, here: Path) -> None:
    (here / "faulty.py").write_text(source)
    with pytest.raises(ValueError, match=re.escape(f"method 'faulty:X': {expected}")):
        find_object("faulty:X", "method")


@pytest.mark.parametrize(
    ("call", "place"),
    [
        ("int('x')", " (faulty.py, line 4)"),
        ("json.loads('{')", " (faulty.py, line 4)"),  # raised in the standard library
        ("torch.nn.Linear(2, 'x')", " (faulty.py, line 4)"),  # in an installed package
        ("perdure.data.load('unknown')", " (faulty.py, line 4)"),  # in perdure
    ],
)
def test_the_location_of_an_error_is_in_the_users_file(call: str, place: str, here: Path) -> None:
    (here / "faulty.py").write_text(f"import json, torch, perdure\n\ndef function():\n    {call}\n")
    function = find_object("faulty:function", "stream")
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever they raise
        function()
    assert describe_error(raised.value).endswith(place)


def test_an_error_outside_the_users_code_has_no_location() -> None:
    with pytest.raises(AttributeError) as raised:
        find_object(1, "stream")  # type: ignore[arg-type]
    trace = raised.value.__traceback__
    assert trace is not None
    assert ".py" not in describe_error(raised.value.with_traceback(trace.tb_next))


def test_calls_that_a_signature_does_not_allow() -> None:
    assert accepts(lambda shape, classes=2, *, width=3: None, 1)
    assert not accepts(lambda shape, *, width: None, 1)
    assert accepts(dict)  # without a signature
    assert not accepts("text")


TREE = {
    "mine.py": "import near\nfrom far.deep.end import value\nimport os, torch, perdure\n",
    "near.py": "import mine  # a cycle\n\ndef later():\n    import lazy\n",
    "lazy.py": "from package import part\nimport cannot_be_found\nimport __main__\n",
    "package/__init__.py": "",
    "package/part.py": "from . import sibling\n",
    "package/sibling.py": "import last",
    "last.py": "",
    "far/deep/end.py": "value = 1\n",  # a namespace package
    "far/broken.py": "def (",
    "unrelated.py": "value = 1\n",
}
"""Modules of a user, of which mine.py is the first."""

Hashes = Callable[..., str]


@pytest.fixture
def hashes(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hashes]:
    """Returns the hash of a module in a new folder with these files."""
    before = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in {key.split("/")[0].removesuffix(".py") for key in TREE}:
                del sys.modules[name]

    def compute(tree: Mapping[str, str], *imported: str, name: str = "mine") -> str:
        folder = tmp_path_factory.mktemp("user")
        for place, source in tree.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(source)
        forget()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            for other in imported:
                importlib.import_module(other)
            return source_hash([f"{name}:anything"])

    yield compute
    forget()


@pytest.mark.parametrize("place", [place for place in TREE if place != "unrelated.py"])
def test_the_hash_of_a_users_code_covers_what_it_imports(place: str, hashes: Hashes) -> None:
    changed = {**TREE, place: f"{TREE[place]}\n# changed"}
    assert hashes(changed) != hashes(TREE)


def test_the_hash_of_a_users_code_depends_on_nothing_else(hashes: Hashes) -> None:
    expected = hashes(TREE)  # in another folder each time
    assert hashes({**TREE, "unrelated.py": "value = 2\n"}) == expected
    assert hashes(TREE, "unrelated", "package.part", "far.deep.end") == expected


def test_the_hash_of_a_module_that_imports_no_module_of_the_user_covers_its_file(
    hashes: Hashes,
) -> None:
    source = "import json, torch\nfrom perdure.learners import ER\n"
    digest = hashlib.sha256(f"mine\nmine.py {len(source)}\n{source}".encode()).hexdigest()
    assert hashes({**TREE, "mine.py": source}) == digest[:16]


def test_the_hash_of_a_package_covers_its_files(hashes: Hashes) -> None:
    tree = {**TREE, "package/sibling.py": ""}
    files = [("__init__.py", ""), ("part.py", TREE["package/part.py"]), ("sibling.py", "")]
    text = "".join(f"{name} {len(source)}\n{source}" for name, source in files)
    digest = hashlib.sha256(f"package.part\n{text}".encode()).hexdigest()
    assert hashes(tree, name="package.part") == digest[:16]


def test_the_hash_of_an_installed_module_covers_only_its_file(hashes: Hashes) -> None:
    name = "msgspec.json"
    assert hashes(TREE, name=name) == hashes({}, name=name)
    assert source_hash([]) == ""


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_the_hash_of_an_installed_package_covers_only_the_named_file(
    folder: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = here / folder / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("")
    monkeypatch.syspath_prepend(package.parent)
    assert source_hash(["mine:x"]) == hashlib.sha256(b"mine\n__init__.py 0\n").hexdigest()[:16]
