"""How rows come from names and texts: what it takes to read new rows of a data set as its first ones were read."""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt.core.plain import Row


@dataclass(frozen=True)
class Reading:
    """What the numbers of a data set stand for.

    Args:
        names: Of the classes, in the order of their numbers; () where classes are numbers from the beginning.
        label: The column of labels in a table.
        columns: The columns of a table that rows are made of.
        text: The columns of a table whose texts are joined; () in a data set that is texts and nothing else.
        words: The vocabulary of texts in the order of its ids, from 2 on (0 is padding, 1 an unknown word).
        tokeniser: Instead of a vocabulary, the folder of an encoder that has a tokeniser of its own.
        length: Ids of a text; 0 where rows are no texts.

    Example:
        >>> Reading(names=("cat", "dog")).number_of["dog"]
        1
    """

    names: tuple[str, ...] = ()
    label: str | None = None
    columns: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    tokeniser: str | None = None
    length: int = 0

    @classmethod
    def of(cls, told: Row) -> Reading:
        """What ``asdict`` made of one, after a way through JSON, which has no tuples."""
        values: Row = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
        return cls(**values)

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of each word."""
        return {word: number for number, word in enumerate(self.words, 2)}

    @property
    def number_of(self) -> dict[str, int]:
        """The number of each class."""
        return {name: number for number, name in enumerate(self.names)}
