"""The recipes that come with the package: by name, wherever a recipe may be given."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedquilt.core.plain import Row
from fedquilt.errors import InputError, did_you_mean

_TAKES = re.compile(r"^# Takes (.*?)(?: on two cores)?\.$", re.M)
_COMMAND = re.compile(r"fedquilt (run|compare|robustness|pretrain-mae) ")


def shipped(name: str, source: str = "") -> Path:
    """A folder that comes with the package: inside it when it is installed; in a checkout at its top, or where its
    ``source`` is."""
    inside = Path(__file__).parents[1] / name
    return inside if inside.is_dir() else Path(__file__).parents[3] / (source or name)


@dataclass(frozen=True)
class ShippedRecipe:
    """One recipe: its name, and its file."""

    name: str
    file: Path

    @cached_property
    def text(self) -> str:
        """The file as it is."""
        return self.file.read_text(encoding="utf-8")

    @property
    def row(self) -> Row:
        """What one asks before running it: by which command, on which data, how long, with which methods."""
        settings = tomllib.loads(self.text)
        by, takes = command(self.text), _TAKES.search(self.text)
        played = settings["compare"]["methods"] if by == "compare" else [settings.get("method", "fedavg")]
        kinds = [choice if isinstance(choice, str) else choice.get("kind", "fedavg") for choice in played]
        return {
            "name": self.name,
            "command": by,
            "data": ", ".join(_sources(settings)),
            "takes": takes[1] if takes else "",
            "methods": "" if by == "pretrain-mae" else ", ".join(dict.fromkeys(kinds)),
        }


def command(text: str) -> str:
    """The command that a recipe is made for, by its first line."""
    found = _COMMAND.search(text)
    return found[1] if found else "run"


def _sources(settings: Row) -> list[str]:
    """The data sets of a recipe, those of its stream included."""
    data, stream = settings.get("data", {}), settings.get("stream", {})
    streamed = stream.get("sources") or []
    own = [data["path"] if "path" in data else data.get("source", "digits")]
    return list(dict.fromkeys(_flat(streamed) or own))


def _flat(listed: list[object]) -> list[str]:
    return [name for one in listed for name in (_flat(one) if isinstance(one, list) else [str(one)])]


def recipes() -> dict[str, ShippedRecipe]:
    """All of them by name, those of the top first: quick, demo, clustered/digits_groups, ..."""
    top = shipped("recipes")
    files = {file.relative_to(top).with_suffix("").as_posix(): file for file in top.rglob("*.toml")}
    return {name: ShippedRecipe(name, files[name]) for name in sorted(files, key=lambda n: (n.count("/"), n))}


def _meant(name: str, known: list[str]) -> str:
    return (did_you_mean(name, known) or ".").replace("; did", ". Did")


def find(asked: str | Path) -> Path:
    """The file of a recipe: a path on the disk or, where there is none, a name ('quick', 'recipes/quick.toml')."""
    file = Path(asked)
    try:
        if file.exists() and not file.is_dir():
            return file
    except OSError as error:  # a name that is too long, say
        raise InputError(f"'{asked}' cannot be read: {error.strerror}.") from error
    known = recipes()
    name = file.as_posix().removeprefix("recipes/").removesuffix(".toml")
    if name in known:
        return known[name].file
    if (file / "config.toml").exists():
        raise InputError(
            f"'{file}' is the folder of a run. To continue it: fedquilt resume {file}. To run its settings again: "
            f"fedquilt run {file / 'config.toml'}."
        )
    if file.is_dir():
        inside = [f"'{one}'" for one in sorted(file.glob("*.toml"))]
        example = f", such as {inside[0]}" if inside else ", a .toml file, or the name of one"
        raise InputError(f"'{file}' is a folder. Give the path of a recipe{example}.")
    beside = [str(one) for one in file.parent.glob("*.toml")]
    raise InputError(
        f"There is no file '{file}', and no recipe of that name{_meant(name, [*beside, *known])} Give the path "
        "of a .toml file, or a name that 'fedquilt recipes' lists."
    )
