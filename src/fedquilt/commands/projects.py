"""The command that begins a project. Heavy libraries are imported when it is used, never for --help."""

from __future__ import annotations

import csv
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedquilt.commands.options import AsJson, echo
from fedquilt.errors import InputError


def new(
    folder: Annotated[Path, typer.Argument(help="Folder to create; its name is the project name.", metavar="PROJECT")],
    data: Annotated[
        Literal["digits", "csv", "images"],
        typer.Option(help="Sample data to start from: 8x8 digits, a CSV table, or an image folder."),
    ] = "digits",
    as_json: AsJson = False,
) -> None:
    """Start a project: a folder with a recipe, your own model and your own method, ready to run.

    Example: [bold]fedquilt new my-project[/bold] or [bold]fedquilt new clinics --data csv[/bold]
    """
    files = begin(folder, data)
    if as_json:
        echo({"folder": str(folder), "files": files})
    else:
        typer.echo(f"Made {folder}: {', '.join(files)}\n\n  cd {_quoted(folder)}\n  fedquilt run recipe.toml")


def _quoted(folder: Path) -> str:
    """As a shell takes it."""
    return (f'"{folder}"' if " " in str(folder) else str(folder)) if os.name == "nt" else shlex.quote(str(folder))


def begin(folder: Path, data: str = "digits") -> list[str]:
    """Make the folder of a project; what is in it."""
    from fedquilt.config.recipes import shipped
    from fedquilt.storage.files import storage

    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._")[:100]
    if not name:
        raise InputError(f"'{folder}' is not a valid project name. Use letters and digits.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"'{folder}' already exists and is not empty. Choose another name.")
    kind = _DATA[data]
    words = {"PROJECT": name, "SETTINGS": kind.settings, "MyCNN": kind.model, _MODELS: kind.listed + _MODELS}
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for template in shipped("project", "examples/project").glob("*.*"):
            text = template.read_text(encoding="utf-8")
            if template.suffix != ".py":
                text = re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)
            (folder / template.name).write_text(text, encoding="utf-8")
        if kind.write is not None:
            kind.write(folder)
    return sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())


def _table(folder: Path) -> None:
    """Measurements of 569 patients, below a header."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    header = [str(name).replace(" ", "_") for name in found.feature_names]
    with (folder / "data.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*header, "label"])
        writer.writerows(
            [*row, found.target_names[y]] for row, y in zip(found.data.tolist(), found.target, strict=True)
        )


def _images(folder: Path) -> None:
    """The first 500 digits, in a folder for each class."""
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for number, (pixels, y) in enumerate(zip(found.images[:500], found.target, strict=False)):
        place = folder / "images" / str(y)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 255 / 16).astype("uint8")).save(place / f"{number:03d}.png")


@dataclass(frozen=True)
class _Data:
    """What a recipe says of its data, which network fits them, what writes them into the project, and what the list of
    its files says of them."""

    settings: str
    model: str
    write: Callable[[Path], None] | None = None
    listed: str = ""


_MODELS = "| `my_model.py` |"  # before it, in the list of files, are the data
_DATA = {
    "digits": _Data('source = "digits" # or path = your own file: see README.md', "MyCNN"),
    "csv": _Data(
        'path = "data.csv" # replace with your own\nlabel = "label" # the column to predict\n'
        '# user = "clinic" # a column that identifies the client of a row, instead of clients and partition',
        "MyMLP",
        _table,
        "| `data.csv` | sample table with a header; replace it with yours |\n",
    ),
    "images": _Data(
        'path = "images" # one folder per class\nsize = 8 # image size in pixels',
        "MyCNN",
        _images,
        "| `images/` | sample images, one folder per class; replace them with yours |\n",
    ),
}
