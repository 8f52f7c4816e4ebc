"""AG News: four topics, in csv files without a header: class (from 1), title, description.

Facts: the readme of the data set (Zhang, Zhao, LeCun 2015, arXiv:1509.01626).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedquilt.core.memory import check_bytes
from fedquilt.core.plain import Array
from fedquilt.data.npz import Arrays
from fedquilt.data.reading import Reading
from fedquilt.data.sources.formats.files import AGAIN, locate, table
from fedquilt.errors import InputError

PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, eq=False)
class Strings:
    """A text data set before its words become numbers; for encoders that bring their own."""

    texts: tuple[str, ...]
    y: Array
    texts_test: tuple[str, ...]
    y_test: Array
    classes: int


def ag_news(folder: Path, size: int = 25_000, length: int = 128) -> Arrays:
    """AG News as word ids: x int32 [n, length], 0 for padding, 1 for unknown words; what ``text_cnn`` takes.

    Args:
        folder: With train.csv and test.csv.
        size: Words in the vocabulary, with padding and unknown: the most frequent ones of the training part.
        length: Words kept of each text, from its beginning.
    """
    found = strings(folder)
    words = vocabulary(found.texts, size)
    x, x_test = (encoded(texts, words, length) for texts in (found.texts, found.texts_test))
    reading = Reading(words=tuple(words), length=length)
    return Arrays(x, found.y, x_test, found.y_test, classes=4, reading=reading)


def strings(folder: Path) -> Strings:
    """AG News as it is: title and description of each text in one string."""
    train, test = (_part(locate(folder, f"{part}.csv")) for part in ("train", "test"))
    return Strings(*train, *test, classes=4)


def tokens(text: str) -> list[str]:
    """The words of a text: lower case, runs of the letters a to z and digits."""
    return _WORD.findall(text.lower())


def vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """The most frequent words, numbered from 2 by falling frequency, ties in the order of the alphabet."""
    if size < 3:
        raise InputError(f"size must be 3 or more (0 is padding, 1 is unknown), got {size}.")
    counts = Counter(word for text in texts for word in tokens(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {word: number for number, word in enumerate(ranked, 2)}


def encoded(texts: Sequence[str], words: dict[str, int], length: int) -> Array:
    """Word ids, int32 [texts, length]: cut, or filled up with padding, at the end."""
    if length < 1:
        raise InputError(f"length must be 1 or more, got {length}.")
    check_bytes(4 * length * len(texts), f"{len(texts)} texts of length {length}")
    ids = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(ids, texts, strict=True):
        found = [words.get(word, UNKNOWN) for word in tokens(text)[:length]]
        row[: len(found)] = found
    return ids


def _part(path: Path) -> tuple[tuple[str, ...], Array]:
    texts, labels = [], []
    for number, row in enumerate(table(path), 1):
        if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
            raise InputError(
                f"{path}: record {number} is {row!r:.80}, not a class from 1 to 4, title, description. {AGAIN}."
            )
        texts.append(" ".join(row[1:]).replace("\\", " "))  # in these files a backslash stands for a line break
        labels.append(int(row[0]) - 1)
    if not texts:
        raise InputError(f"{path} is empty. {AGAIN}.")
    return tuple(texts), np.array(labels)
