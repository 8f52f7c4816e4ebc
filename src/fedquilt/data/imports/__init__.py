"""Users' own data in common forms: tables, image folders, PFLlib splits, Hugging Face and Flower data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedquilt.data.imports.columns import Targets, Words, labelled
from fedquilt.data.imports.folders import of_folder
from fedquilt.data.imports.hub import of_flwr, of_hf
from fedquilt.data.imports.pfllib import is_split, of_pfllib
from fedquilt.data.imports.tables import cells as cells
from fedquilt.data.imports.tables import of_csv, of_frame, of_parquet
from fedquilt.data.npz import Arrays, arrays_of, load
from fedquilt.errors import InputError

__all__ = [
    "Targets",
    "Words",
    "is_split",
    "labelled",
    "of_csv",
    "of_flwr",
    "of_folder",
    "of_frame",
    "of_hf",
    "of_parquet",
    "of_pfllib",
    "open",
]


def open(
    path: Path,
    label: str | Targets | None = None,
    user: str | None = None,
    size: int | None = None,
    features: Sequence[str] | None = None,
    words: Words | None = None,
    categories: Sequence[str] = (),
) -> Arrays:
    """The arrays of a file or folder, told apart by what it is.

    Args:
        path: A folder of images, or a file called .csv, .csv.gz, .parquet or .npz.
        label: The label column of a table ('label').
        user: The column, or key, of who each row comes from.
        size: The side of images from a folder, in pixels (64).
        features: The columns of a table to use (all).
        words: Which columns of a table are texts, and how they become numbers.
        categories: Columns of a table that are categories though their cells look like numbers.
    """
    table = path.name.endswith((".csv", ".csv.gz", ".parquet"))
    of_tables = {"label": label, "features": features, "categories": list(categories) or None}
    _refuse(path, of_tables | {"text": words and words.columns}, not table, "tables (.csv, .parquet)")
    _refuse(path, {"user": user}, path.is_dir(), "files; in a folder, clients have folders of their own")
    _refuse(path, {"size": size}, not path.is_dir(), "folders of images")
    if path.is_dir():
        return of_folder(path, 64 if size is None else size)
    if table:
        read = of_parquet if path.suffix == ".parquet" else of_csv
        return read(path, "label" if label is None else label, user, features, words=words, categories=categories)
    if path.is_file() and path.suffix != ".npz":
        raise InputError(f"{path} is none of .npz, .csv, .csv.gz, .parquet. Save it as one of them, or give a folder.")
    return arrays_of(load(path), str(path), user)


def _refuse(path: Path, options: Mapping[str, object], where: bool, what: str) -> None:
    """Raise if one of these options is given ``where`` it means nothing."""
    for option, value in options.items():
        if where and value is not None:
            raise InputError(f"{option} = {value!r} is for {what}, and {path} is something else. Leave it out.")
