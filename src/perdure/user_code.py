"""A user's own code: what `module:name` refers to, where errors and warnings are, its source."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

_PERDURE = Path(__file__).parent
_STANDARD_LIBRARY = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}


def find_object(reference: str, what: str) -> Any:
    """Import the object that `module:name` refers to; also searches the current folder.

    `what` names the kind of object in error messages.

    Raises:
        ValueError: If there is no such module or object, or importing the module fails.

    >>> find_object("math:sqrt", "function")(9)
    3.0
    """
    module, _, name = reference.partition(":")
    if not (module and name):
        raise ValueError(f"{what} {reference!r}; expected module:name")
    if module.endswith(".py"):
        stem = Path(module).stem
        raise ValueError(
            f"{what} {reference!r} names a file; expected the module in the current folder, as in "
            f"{stem}:{name}"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except SystemExit as error:
        remedy = "move the code that does so below `if __name__ == '__main__':`"
        reason = error.code if isinstance(error.code, str) else remedy
        raise ValueError(
            f"{what} {reference!r}: importing {module} ends the program; {reason}"
        ) from error
    except Exception as error:
        raise ValueError(f"{what} {reference!r}: {describe_error(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{what} {reference!r}: {module} has no {name!r}")
        found = getattr(found, part)
    return found


def accepts(function: Any, *arguments: object) -> bool:
    """Whether a function can be called with these arguments, as far as its signature says.

    >>> accepts(lambda shape, classes: None, (3,), 2), accepts(lambda: None, 1), accepts(3)
    (True, False, False)
    """
    if not callable(function):
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def describe_error(error: BaseException) -> str:
    """Message of an error in a user's code and, if code of the user was running, its location."""
    if isinstance(error, ImportError | SyntaxError):
        return str(error)
    places = traceback.extract_tb(error.__traceback__)
    own = [place for place in places if not _is_foreign(place.filename)]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    text = f": {error}" if str(error) else ""
    return f"{type(error).__name__}{text}{where}"


def warn_caller(message: str) -> None:
    """Issue a warning that points to the line of a user's code that called perdure."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and Path(frame.f_code.co_filename).is_relative_to(_PERDURE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def raised_in(error: BaseException, function: Callable[..., object]) -> bool:
    """Whether an error was raised in a function or in what it called."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is function.__code__ for frame, _ in frames)


def _is_foreign(file: str) -> bool:
    """Whether code is of perdure, of an installed package, or from no file."""
    path = Path(file)
    return file.startswith("<") or path.is_relative_to(_PERDURE) or _is_installed(path)


def source_hash(references: Iterable[str]) -> str:
    """Sixteen hex digits of the source of modules, given as `module:name`; "" for none.

    Covers the file of each module or, if it is in a package that is not installed, all Python files
    of the package, and in the same way what `import` statements in these files refer to, and so on,
    except for the standard library, installed packages and perdure. The modules must be importable;
    those without a source contribute their name.
    """
    found = hashlib.sha256()
    names = sorted({reference.partition(":")[0] for reference in references})
    sources = {name: _source_files(name) for name in names}
    for name, paths in [*sources.items(), *sorted(_imported_sources(sources).items())]:
        found.update(f"{name}\n".encode())
        for path in paths:
            content = path.read_bytes()
            found.update(f"{path.name} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16] if names else ""


def _source_files(name: str) -> list[Path]:
    """The Python files of a module's package or, if there is none or it is installed, its own."""
    file = getattr(importlib.import_module(name), "__file__", None)
    installed = file is None or _is_installed(Path(file))
    package = sys.modules[name.partition(".")[0]]
    files = [] if installed else _python_files(getattr(package, "__path__", ()))
    return files or ([Path(file)] if file is not None and file.endswith(".py") else [])


def _imported_sources(sources: Mapping[str, Iterable[Path]]) -> dict[str, list[Path]]:
    """The Python files of a user's other modules and packages that these files import, by name.

    Reads import statements and imports nothing, so that what is found depends on files alone.
    """
    found: dict[str, list[Path]] = {}
    known = {"perdure", *(name.partition(".")[0] for name in sources)}
    queue = [path for paths in sources.values() for path in paths if not _is_installed(path)]
    while queue:
        for name in _imported_names(queue.pop().read_bytes()) - known:
            known.add(name)
            try:
                spec = importlib.util.find_spec(name)
            except (ImportError, ValueError):  # ValueError: it was not created by an import
                spec = None
            if spec is None:
                continue
            folders = spec.submodule_search_locations or ()
            files = _python_files(folder for folder in folders if not _is_installed(Path(folder)))
            if spec.has_location and (file := str(spec.origin)).endswith(".py"):
                files = files or [Path(file)]
            if own := [path for path in files if not _is_installed(path)]:
                found[name] = own
                queue += own
    return found


def _python_files(folders: Iterable[str]) -> list[Path]:
    paths = (path for folder in folders for path in sorted(Path(folder).rglob("*.py")))
    return [path for path in paths if path.is_file()]


def _is_installed(path: Path) -> bool:
    """Whether a file or folder belongs to the standard library or to an installed package."""
    packages = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(packages) or any(path.is_relative_to(folder) for folder in _STANDARD_LIBRARY)


@lru_cache(maxsize=1024)
def _imported_names(source: bytes) -> frozenset[str]:
    """The top-level names of the modules that a Python file imports, wherever in the file.

    >>> sorted(_imported_names(b"import a.b, c; from d.e import f; from . import g"))
    ['a', 'c', 'd']
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's code; importing it shows them
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # not importable either
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [node.module for node in froms if node.module and not node.level]
    return frozenset(name.partition(".")[0] for name in names)
