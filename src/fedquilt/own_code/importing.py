"""Importing code of the user's own from what was read, and telling its errors with their file and line."""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import linecache
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from types import CodeType
from typing import Any

from fedquilt.errors import FedquiltError, InputError, did_you_mean
from fedquilt.own_code.files import KNOWN, PACKAGE, OwnCode
from fedquilt.own_code.references import it_has
from fedquilt.own_code.trust import refuse_untrusted

_loaded: set[str] = set()  # the paths of what this process did import


class _Loader(importlib.abc.InspectLoader):
    """Loads from the files that were read, not from what may be on disk by now; without a file, a folder of them."""

    def __init__(self, code: OwnCode | None, file: str | None) -> None:
        self.code, self.file = code, file

    def get_source(self, fullname: str) -> str:
        """The file's text."""
        if self.code is None or self.file is None:
            return ""
        return importlib.util.decode_source(self.code.files[self.file])

    def is_package(self, fullname: str) -> bool:
        """Whether there are modules below it."""
        return self.file is None or self.file.endswith("__init__.py")

    def get_code(self, fullname: str) -> CodeType:
        """The code, with imports of files beside it as imports of what was read with it."""
        if self.code is None or self.file is None:
            return compile("", "<folder>", "exec")
        text, path = self.get_source(fullname), self.code.path(self.file)
        # for tracebacks in any process, and whatever the file is by then
        _loaded.add(path)
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        tree = ast.parse(text, filename=path)
        _import_beside(tree, self.code)
        return compile(tree, path, "exec", dont_inherit=True)


def _import_beside(tree: ast.AST, code: OwnCode) -> None:
    """Have imports of files beside it lead to what was read with it."""
    above, tops = f"{code.package}.", {PurePosixPath(path).parts[0].removesuffix(".py") for path in code.files}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).partition(".")[0] in tops:
            node.module = above + str(node.module)
        elif isinstance(node, ast.Import):
            node.names = [new for alias in node.names for new in _aliases(alias, above, tops)]


def _aliases(alias: ast.alias, above: str, tops: Collection[str]) -> list[ast.alias]:
    """What one of ``import a.b, c as d`` becomes; without 'as', it is the first part of the name that is bound."""
    top = alias.name.partition(".")[0]
    if top not in tops:
        return [alias]
    if alias.asname is not None or top == alias.name:
        found = [ast.alias(above + alias.name, alias.asname or alias.name)]
    else:
        found = [ast.alias(above + alias.name, "_fedquilt"), ast.alias(above + top, top)]
    return [ast.copy_location(new, alias) for new in found]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module of this name, if its code is known here."""
        package, *inner = name.split(".")
        if package != PACKAGE:
            return None
        code = KNOWN.get(inner[0][1:]) if inner else None
        if inner and code is None:
            return None
        file = None if code is None else _file_of(code, "/".join(inner[1:]))
        if file == "":
            return None
        loader = _Loader(code, file)
        origin = None if code is None or file is None else code.path(file)
        spec = ModuleSpec(name, loader, origin=origin, is_package=loader.is_package(name))
        spec.has_location = origin is not None
        return spec


def _file_of(code: OwnCode, path: str) -> str | None:
    """The file of a module; None for a folder, and '' for nothing."""
    for file in (f"{path}.py", f"{path}/__init__.py") if path else ("__init__.py",):
        if file in code.files:
            return file
    return None if not path or any(file.startswith(f"{path}/") for file in code.files) else ""


sys.meta_path.append(_Finder())


def load(where: str) -> Any:
    """The object at 'module:name' of code of the user's own; what is wrong there is told with its file and line."""
    module, _, name = where.partition(":")
    refuse_untrusted(module, code_of(module))
    try:
        value: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, FedquiltError):
            raise
        raise InputError(f"{_file(module)} cannot be imported: {told(error)}") from error
    for part in name.split("."):
        if not hasattr(value, part):
            names = [n for n in vars(value) if not n.startswith("_") and _at_home(vars(value)[n], module)]
            raise InputError(f"{_file(module)} has no {name!r}{did_you_mean(name, names)}{it_has(names)}.")
        value = getattr(value, part)
    return value


def _at_home(value: object, module: str) -> bool:
    return getattr(value, "__module__", None) == module


def _file(module: str) -> str:
    code = code_of(module)
    return f"'{code.entry}'" if code is not None else f"The module '{module}'"


def code_of(module: str) -> OwnCode | None:
    package, _, rest = module.partition(".b")
    return KNOWN.get(rest[:16]) if package == PACKAGE else None


@contextmanager
def own_errors(what: str) -> Iterator[None]:
    """Errors of the user's own code as errors that tell its file and line."""
    try:
        yield
    except Exception as error:
        if isinstance(error, FedquiltError) or not place(error):
            raise
        raise InputError(f"{what} failed: {told(error)}") from error


def told(error: BaseException) -> str:
    """An error in a few words, with the file and line of the user's own code where it happened."""
    text = f"{type(error).__name__}: {error}" if not isinstance(error, SyntaxError) else f"SyntaxError: {error.msg}"
    return f"{text}{place(error)}"


def place(error: BaseException) -> str:
    """' (FILE, line N: CODE)': the innermost line of the user's own code; '' without any."""
    if isinstance(error, SyntaxError) and error.filename in _loaded:
        return _line(str(error.filename), error.lineno or 0, error.text or "")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in _loaded]
    return _line(frames[-1].filename, frames[-1].lineno or 0, frames[-1].line or "") if frames else ""


def _line(file: str, number: int, text: str) -> str:
    return f" ({Path(file).name}, line {number}: {text.strip()})"
