"""What names code of the user's own: ``file.py:Name`` or ``package.module:Name``, and where that is looked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath

from fedquilt.errors import InputError
from fedquilt.own_code.files import COPIES, KNOWN, OwnCode, read

_NAMED = r"(?:@(?P<hash>[0-9a-f]{16}))?:(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)"
_FILE = re.compile(rf"(?P<place>[^\x00]*\.py){_NAMED}")
_MODULE = re.compile(rf"(?P<place>[^\W\d]\w*(?:\.[^\W\d]\w*)*){_NAMED}")
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
    if found is None or found["hash"] in KNOWN:
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
    code = KNOWN.get(found["hash"]) or _code_of(found["place"], found["hash"])
    return f"{found['place'] if code is None else code.module}:{found['name']}"


def _no_name(text: str) -> InputError:
    file = text.partition(":")[0]
    code = _code_of(file, None)
    has = [] if code is None else code.names()
    example = f"'{file}:{has[0] if has else 'Name'}'"
    return InputError(f"{text!r} does not say what of the file is meant. Write {example}{it_has(has)}.")


def it_has(names: Sequence[str]) -> str:
    return f" (it has {', '.join(names)})" if names else ""


def _code_of(place: str, hash: str | None) -> OwnCode | None:
    """The code of a reference; None for a module that is in no folder of the recipe's, and so of a package."""
    folders = list(dict.fromkeys((*_folders.get(), Path())))
    file = place if place.endswith(".py") else place.replace(".", "/") + ".py"
    other: OwnCode | None = None
    for folder in folders:
        for root, entry in _places(folder, file, place.endswith(".py"), hash):
            if (root / entry).is_file():
                code = other = read(root, entry)
                if hash in (None, code.hash):
                    KNOWN[code.hash] = code
                    return code
    if other is not None:
        raise InputError(
            f"'{other.path(other.entry)}' or what it imports is not what the recipe was made with: its hash is "
            f"{other.hash}, not {hash}. Restore it, or name it without '@{hash}' for a new run."
        )
    if not place.endswith(".py") and hash is None:
        return None
    looked = " or ".join(f"'{folder.resolve()}'" for folder in folders)
    raise InputError(f"There is no file '{file}' in {looked}. Give its path from the recipe's folder or from here.")


def _places(folder: Path, file: str, is_file: bool, hash: str | None) -> Iterator[tuple[Path, str]]:
    """Where a reference may be: among the copies of a run, or as it is written."""
    copies = [] if hash is None else sorted((folder / COPIES).glob(f"*-{hash}"))
    if is_file:
        yield from ((copy, Path(file).name) for copy in copies)
        yield (folder / file).parent, Path(file).name
        return
    for place in (*copies, folder):
        yield place, file
        yield place, file.removesuffix(".py") + "/__init__.py"
