"""Code of the user's own that a recipe names: ``my.py:MyModel``, or ``package.module:MyModel``.

A file is read once, with the modules beside it that it imports, and what was read is what runs: here, in worker
processes and at sites. The hash of these files is part of the module's name and of what the recipe says
(``my.py@HASH:MyModel``), so that two versions of a file can never be taken for each other. Files are found from the
recipe's folder, from the current one, or, for the recipe in a run's folder, in the copy that lies there. Nothing here
imports torch.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.abc
import importlib.util
import linecache
import re
import shutil
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from types import CodeType
from typing import Any

from fedquilt.errors import FedquiltError, InputError, did_you_mean

PACKAGE = "fedquilt_code"  # the name above all modules of users' own
COPIES = "code"  # the folder of a run that keeps what it was made with
_NAMED = r"(?:@(?P<hash>[0-9a-f]{16}))?:(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)"
_FILE = re.compile(rf"(?P<place>[^\x00]*\.py){_NAMED}")
_MODULE = re.compile(rf"(?P<place>[^\W\d]\w*(?:\.[^\W\d]\w*)*){_NAMED}")
MOST_BYTES = 2**20  # of the files of one reference


@dataclass(frozen=True)
class OwnCode:
    """A file of the user's, and the modules beside it that it imports.

    Args:
        root: The folder they are in; where it is told, and where lines of errors are looked for.
        entry: The file that is named, below the root.
        files: The content of each, by its path below the root.
    """

    root: str
    entry: str
    files: Mapping[str, bytes]

    @cached_property
    def prints(self) -> dict[str, str]:
        """The SHA-256 of each file, by its path."""
        return {path: hashlib.sha256(self.files[path]).hexdigest() for path in sorted(self.files)}

    @cached_property
    def hash(self) -> str:
        """What tells this code from any other."""
        told = "".join(f"{path} {print_}\n" for path, print_ in self.prints.items())
        return hashlib.sha256(f"{self.entry}\n{told}".encode()).hexdigest()[:16]

    @property
    def package(self) -> str:
        """The name above all of its modules."""
        return f"{PACKAGE}.b{self.hash}"

    @property
    def module(self) -> str:
        """The name by which the file is imported."""
        return f"{self.package}." + ".".join(PurePosixPath(self.entry).with_suffix("").parts)

    @property
    def folder(self) -> str:
        """The name of its copy's folder."""
        return f"{PurePosixPath(self.entry).stem}-{self.hash}"

    def path(self, file: str) -> str:
        """Where a file is, as errors tell it."""
        return str(Path(self.root) / file)

    def names(self) -> list[str]:
        """What the file has that could be meant; found without running it."""
        try:
            body = ast.parse(self.files[self.entry]).body
        except (SyntaxError, ValueError):
            return []
        found = [n.name for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
        found += [t.id for n in body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
        return [name for name in found if not name.startswith("_")]


_known: dict[str, OwnCode] = {}  # by hash; what this process may import
_trusted: ContextVar[tuple[Collection[str], Collection[str]] | None] = ContextVar("trusted", default=None)  # None: all
_loaded: set[str] = set()  # the paths of what it did import
_folders: ContextVar[tuple[Path, ...]] = ContextVar("folders", default=())


@contextmanager
def looking_in(folder: Path | None) -> Iterator[None]:
    """References are looked for in this folder first, and then in the current one."""
    token = _folders.set(() if folder is None else (folder,))
    try:
        yield
    finally:
        _folders.reset(token)


def is_reference(text: str) -> bool:
    """Whether a name is of the form ``file.py:Name`` or ``package.module:Name``."""
    return _parts(text) is not None


def _parts(text: str) -> re.Match[str] | None:
    return _FILE.fullmatch(text) or _MODULE.fullmatch(text)


def short(name: str) -> str:
    """What people read: of a reference only its last part."""
    return name.rpartition(":")[2] if is_reference(name) else name


def unpinned(name: str) -> str:
    """A reference as somebody would write it."""
    return re.sub(r"@[0-9a-f]{16}:", ":", name)


def pinned(text: str) -> str:
    """The reference with the hash of its files, ``my.py@HASH:Name``; that of an installed package stays as it is."""
    found = _parts(text)
    if found is None or found["hash"] in _known:
        return text
    code = _code_of(found["place"], found["hash"])
    if code is None:
        return text
    place = found["place"]
    return f"{PurePosixPath(code.entry).name if place.endswith('.py') else place}@{code.hash}:{found['name']}"


def where(text: str) -> str:
    """'module:name' of a reference, as it is imported; a mere file is an error that tells what it has."""
    found = _parts(text)
    if found is None:
        raise _no_name(text)
    code = _known.get(found["hash"]) or _code_of(found["place"], found["hash"])
    return f"{found['place'] if code is None else code.module}:{found['name']}"


def _no_name(text: str) -> InputError:
    file = text.partition(":")[0]
    code = _code_of(file, None)
    has = [] if code is None else code.names()
    example = f"'{file}:{has[0] if has else 'Name'}'"
    return InputError(f"{text!r} does not say what of the file is meant. Write {example}{_it_has(has)}.")


def _it_has(names: Sequence[str]) -> str:
    return f" (it has {', '.join(names)})" if names else ""


def _code_of(place: str, hash: str | None) -> OwnCode | None:
    """The code of a reference; None for a module that is in no folder of the recipe's, and so of a package."""
    folders = list(dict.fromkeys((*_folders.get(), Path())))
    file = place if place.endswith(".py") else place.replace(".", "/") + ".py"
    other: OwnCode | None = None
    for folder in folders:
        for root, entry in _places(folder, file, place.endswith(".py"), hash):
            if (root / entry).is_file():
                code = other = _read(root, entry)
                if hash in (None, code.hash):
                    _known[code.hash] = code
                    return code
    if other is not None:
        raise InputError(
            f"'{other.path(other.entry)}' or what it imports is not what the recipe was made with: its hash is "
            f"{other.hash}, not {hash}. Put it back as it was, or name it without '@{hash}' for a new run."
        )
    if not place.endswith(".py") and hash is None:
        return None
    looked = " or ".join(f"'{folder.resolve()}'" for folder in folders)
    raise InputError(f"There is no file '{file}' in {looked}. Give its path from the recipe's folder or from here.")


def _places(folder: Path, file: str, is_file: bool, hash: str | None) -> Iterator[tuple[Path, str]]:
    """Where a reference may be: among the copies of a run, or as it is written."""
    if hash is not None:
        for copy in sorted((folder / COPIES).glob(f"*-{hash}")):
            yield copy, Path(file).name if is_file else file
    if is_file:
        yield (folder / file).parent, Path(file).name
        return
    yield folder, file
    yield folder, file.removesuffix(".py") + "/__init__.py"


def _read(root: Path, entry: str) -> OwnCode:
    """A file and what it imports of the files beside it."""
    root = root.resolve()
    files: dict[str, bytes] = {}
    waiting = [entry]
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files[path] = (root / path).read_bytes()
        if sum(map(len, files.values())) > MOST_BYTES:
            raise InputError(f"'{root / entry}' and what it imports are more than {MOST_BYTES:,} bytes of code.")
        waiting += _imports(root, path, files[path])
    return OwnCode(str(root), entry, files)


def _imports(root: Path, path: str, source: bytes) -> set[str]:
    """The files below the root that a file imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()  # told when it is imported
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found |= _files(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            above = PurePosixPath(path).parts[: -node.level] if node.level else ()
            base = [*above, *(node.module.split(".") if node.module else [])]
            found |= _files(root, base)
            for alias in node.names:
                found |= _files(root, [*base, alias.name])
    return found


def _files(root: Path, module: Sequence[str]) -> set[str]:
    """The files that make a module below the root, with those of the packages around it; none if it is not there."""
    tried = [Path(*module[:n], "__init__.py") for n in range(1, len(module) + 1)]
    tried += [Path(*module).with_suffix(".py")] if module and module[-1] != "*" else []
    found = {path.as_posix() for path in tried if (root / path).is_file()}
    return found


# Importing


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
        tree = _Beside(self.code).visit(ast.parse(text, filename=path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Beside(ast.NodeTransformer):
    """``import helper`` as an import from the same code."""

    def __init__(self, code: OwnCode) -> None:
        self.above = f"{code.package}."
        self.tops = {PurePosixPath(path).parts[0].removesuffix(".py") for path in code.files}

    def _own(self, module: str | None) -> bool:
        return module is not None and module.partition(".")[0] in self.tops

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """``import a.b`` binds a."""
        names = []
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if not self._own(alias.name):
                names.append(alias)
            elif alias.asname is not None or top == alias.name:
                names.append(ast.alias(self.above + alias.name, alias.asname or alias.name))
            else:
                names += [ast.alias(self.above + alias.name, "_"), ast.alias(self.above + top, top)]
        return ast.copy_location(ast.Import(names), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """``from a.b import c``."""
        if node.level == 0 and self._own(node.module):
            return ast.copy_location(ast.ImportFrom(self.above + str(node.module), node.names, 0), node)
        return node


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module of this name, if its code is known here."""
        package, *inner = name.split(".")
        if package != PACKAGE:
            return None
        code = _known.get(inner[0][1:]) if inner else None
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
    for file in (f"{path}.py", f"{path}/__init__.py"):
        if file in code.files:
            return file
    return None if not path or any(file.startswith(f"{path}/") for file in code.files) else ""


sys.meta_path.append(_Finder())


def load(where: str) -> Any:
    """The object at 'module:name' of code of the user's own; what is wrong there is told with its file and line."""
    module, _, name = where.partition(":")
    _refuse_untrusted(module)
    try:
        value: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, FedquiltError):
            raise
        raise InputError(f"{_file(module)} cannot be imported: {told(error)}") from error
    for part in name.split("."):
        if not hasattr(value, part):
            names = [n for n in vars(value) if not n.startswith("_") and _at_home(vars(value)[n], module)]
            raise InputError(f"{_file(module)} has no {name!r}{did_you_mean(name, names)}{_it_has(names)}.")
        value = getattr(value, part)
    return value


def _at_home(value: object, module: str) -> bool:
    return getattr(value, "__module__", None) == module


def _file(module: str) -> str:
    code = _of_module(module)
    return f"'{code.entry}'" if code is not None else f"The module '{module}'"


def _of_module(module: str) -> OwnCode | None:
    package, _, rest = module.partition(".b")
    return _known.get(rest[:16]) if package == PACKAGE else None


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


# Other processes, and copies


def used(*values: object) -> list[OwnCode]:
    """The code that is named anywhere in descriptions or settings."""
    if not _known:
        return []
    found = set(re.findall(rf"(?:{PACKAGE}\.b|@)([0-9a-f]{{16}})(?=[.:])", repr(values)))
    return [code for hash, code in _known.items() if hash in found]


def refusal(codes: Sequence[OwnCode], trusted: Collection[str]) -> InputError | None:
    """Why code of somebody else's is not run here, and what its hashes are; None if the SHA-256 of each of its files is
    among the trusted ones."""
    files = {(path, print_) for code in codes for path, print_ in code.prints.items() if print_ not in trusted}
    if not files:
        return None
    named = ", ".join(f"{path} (sha256 {print_})" for path, print_ in sorted(files))
    options = " ".join(f"--trust-code {print_}" for print_ in sorted({print_ for _, print_ in files}))
    return InputError(
        f"The recipe names code that this site does not trust: {named}. Nothing of it was run. If you have read "
        f"it and trust it: {options}"
    )


def write_down(codes: Sequence[OwnCode], folder: Path) -> None:
    """Write files to be looked at, under names that nothing imports, in place of those that were there."""
    shutil.rmtree(folder, ignore_errors=True)
    for code in codes:
        for path, content in code.files.items():
            place = folder / code.folder / f"{path}.txt"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


@contextmanager
def only(code: Collection[str], packages: Collection[str]) -> Iterator[None]:
    """Inside, references lead to files with these SHA-256, and to these packages, and anything else is refused."""
    token = _trusted.set((code, packages))
    try:
        yield
    finally:
        _trusted.reset(token)


def _refuse_untrusted(module: str) -> None:
    trusted, code = _trusted.get(), _of_module(module)
    if trusted is None:
        return
    if code is not None and (why := refusal([code], trusted[0])) is not None:
        raise why
    if code is None and not any(module == package or module.startswith(f"{package}.") for package in trusted[1]):
        raise InputError(
            f"The recipe names {module!r}, which this site does not trust. If you do, give --trust {module}"
        )


def packed(codes: Sequence[OwnCode]) -> list[list[Any]]:
    """Code as plain values, for another process."""
    return [[code.root, code.entry, dict(code.files)] for code in codes]


def unpacked(given: Sequence[Sequence[Any]]) -> list[OwnCode]:
    """The code again."""
    return [OwnCode(str(root), str(entry), dict(files)) for root, entry, files in given]


def let_in(codes: Sequence[OwnCode]) -> None:
    """From here on this process can import it."""
    for code in codes:
        _known.setdefault(code.hash, code)


_PATH = re.compile(r"(?:[^\W\d]\w*/)*[^\W\d]\w*\.py")


def received(frame: object) -> list[OwnCode]:
    """Code that came from elsewhere; nothing of it is run, or let in. Raises unless it is what :func:`packed` gives."""
    given: Any = frame if isinstance(frame, list) else [frame]
    if not all(map(_is_sound, given)):
        raise InputError("malformed code: it should be lists of a root, a file, and files by their paths")
    if sum(len(content) for _, _, files in given for content in files.values()) > MOST_BYTES:
        raise InputError(f"malformed code: more than {MOST_BYTES:,} bytes")
    return unpacked([["", *rest] for _, *rest in given])


def _is_sound(item: object) -> bool:
    if not (isinstance(item, list) and len(item) == 3):
        return False
    _, entry, files = item
    if not (isinstance(entry, str) and isinstance(files, dict) and entry in files):
        return False
    return all(isinstance(p, str) and _PATH.fullmatch(p) and isinstance(c, bytes) for p, c in files.items())
