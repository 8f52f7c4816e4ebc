"""Code that came from elsewhere: nothing of it is imported unless its hashes are trusted."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fedquilt.errors import InputError
from fedquilt.own_code.files import KNOWN, MOST_BYTES, NAMED, PACKAGE, OwnCode

_trusted: ContextVar[tuple[Collection[str], Collection[str]] | None] = ContextVar("trusted", default=None)  # None: all


def used(*values: object) -> list[OwnCode]:
    """The code that is named anywhere in descriptions or settings."""
    if not KNOWN:
        return []
    found = set(re.findall(rf"(?:{PACKAGE}\.b|@)([0-9a-f]{{16}})(?=[.:])", repr(values)))
    return [code for hash, code in KNOWN.items() if hash in found]


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


def refuse_untrusted(module: str, code: OwnCode | None) -> None:
    """Raise inside :func:`only` for what is not trusted there."""
    trusted = _trusted.get()
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
        KNOWN.setdefault(code.hash, code)


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
    return all(isinstance(p, str) and re.fullmatch(NAMED, p) and isinstance(c, bytes) for p, c in files.items())
