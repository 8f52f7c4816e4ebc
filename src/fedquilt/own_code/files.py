"""The files of code of the user's own: what is read, and its hash."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from fedquilt.errors import InputError

PACKAGE = "fedquilt_code"  # the name above all modules of users' own
COPIES = "code"  # the folder of a run that keeps what it was made with
NAMED = r"(?:[\w-][\w -]*/)*[\w-][\w -]*\.py"  # the path of a file that can be imported
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
        path = PurePosixPath(self.entry)
        parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
        return ".".join((self.package, *parts))

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


KNOWN: dict[str, OwnCode] = {}  # by hash; what this process may import


def read(root: Path, entry: str) -> OwnCode:
    """A file and what it imports of the files beside it."""
    if re.fullmatch(NAMED, entry) is None:
        raise InputError(
            f"The file '{root / entry}' cannot be imported by its name. Rename it to one of letters, digits, '_', '-' "
            f"and spaces, such as '{re.sub('[^A-Za-z0-9_-]+', '_', Path(entry).stem).strip('_') or 'my'}.py'."
        )
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
