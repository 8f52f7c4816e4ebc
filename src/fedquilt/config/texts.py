"""Texts of a data set as numbers, by settings: ids of a vocabulary, or of an encoder's own tokeniser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedquilt.config.config import Data
from fedquilt.core.plain import Array
from fedquilt.data import Arrays, imports, texts
from fedquilt.data.imports.columns import joined
from fedquilt.data.reading import Reading
from fedquilt.data.sources.formats.text import encoded, vocabulary
from fedquilt.errors import InputError
from fedquilt.models import tokenise

WORDS, LENGTH = 20_000, 64  # where the settings do not say


@dataclass(frozen=True)
class TokenColumns(imports.Words):
    """Columns of text as x: what the tokeniser in ``folder`` makes of them, int64 [rows, length]."""

    folder: str = ""

    def read(self, columns: Mapping[str, Array]) -> tuple[Array, Reading]:
        """The token ids of each row, and whose they are."""
        reading = Reading(text=self.columns, tokeniser=self.folder, length=self.length)
        return tokenise(joined(columns, self.columns), self.folder, self.length), reading


def columns_of_text(data: Data) -> imports.Words | None:
    """How the text columns of a table become numbers; None when there are none."""
    if data.text is None:
        if asked(data):
            raise InputError(
                "data.words, data.length and data.tokeniser go with data.text, which names the columns of text, or "
                "with a source of texts."
            )
        return None
    names = (data.text,) if isinstance(data.text, str) else tuple(data.text)
    length = data.length or LENGTH
    if data.tokeniser is not None:
        _refuse_words(data)
        return TokenColumns(names, length=length, folder=data.tokeniser)
    return imports.Words(names, data.words or WORDS, length)


def asked(data: Data) -> bool:
    """Whether the settings say how texts become numbers."""
    return (data.words, data.length, data.tokeniser) != (None, None, None)


def source_of_texts(data: Data, name: str) -> Arrays:
    """A named data set of texts, numbered as the settings say; the vocabulary is that of its training part."""
    found = texts(name)
    length = data.length or LENGTH
    if data.tokeniser is not None:
        _refuse_words(data)
        x, x_test = (tokenise(part, data.tokeniser, length) for part in (found.texts, found.texts_test))
        reading = Reading(tokeniser=data.tokeniser, length=length)
    else:
        words = vocabulary(found.texts, data.words or WORDS)
        x, x_test = (encoded(part, words, length) for part in (found.texts, found.texts_test))
        reading = Reading(words=tuple(words), length=length)
    return Arrays(x, found.y, x_test, found.y_test, classes=found.classes, name=name, reading=reading)


def _refuse_words(data: Data) -> None:
    if data.words is not None:
        raise InputError("data.words and data.tokeniser are mutually exclusive: the tokeniser has its own vocabulary.")
