"""What a site brings: its data, its name, where it keeps its clients' states, and whom it trusts."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from fedquilt import own_code
from fedquilt.config.options import explain
from fedquilt.errors import ConfigError, InputError, did_you_mean
from fedquilt.storage.files import write_atomic

if TYPE_CHECKING:
    from fedquilt.core.table import Source

Share = Annotated[float, Field(ge=0, lt=1)]


class SiteSettings(BaseModel):
    """The settings of one site, in a file that only this site has.

    Args:
        data: A .npz, .csv or .parquet file, a folder of images, or 'file.py:function' or
            'package.module:function' that returns a federation.
        name: The id of the site's one client; without a name, the rows' users are the clients.
        label, user, size: The label column, the column of clients, and the side of images, as in a recipe's ``data``.
        features, categories: The columns of a table to use, and those that are categories; the same at every site.
        state: The folder for clients' states; they survive a restart of the node there.
        trusted: Packages beside this library whose methods may be used here.
        trusted_code: The SHA-256 of each file of a recipe's own code that may run here.
        test, valid, seed: How each client's samples are divided for training and scoring.
        mean, std: How bytes become numbers; the same at every site.
        classes: How many classes there are in the whole federation.
        max_steps, max_epochs, max_jobs, max_seconds: What this site works on at most, whatever the server asks for; see
            :class:`fedquilt.engines.flower.budget.Budget`.
    """

    model_config = ConfigDict(extra="forbid")

    data: str
    name: str | int | None = None
    label: str | None = None
    user: str | None = None
    features: list[str] | None = None
    categories: list[str] = []
    size: Annotated[int, Field(ge=1)] | None = None
    state: str
    trusted: list[str] = []
    trusted_code: list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = []
    test: Share = 0.2
    valid: Share = 0.1
    seed: Annotated[int, Field(ge=0)] = 0
    mean: float | list[float] = 0.0
    std: float | list[float] = 1.0
    classes: Annotated[int, Field(ge=2)] | None = None
    path: list[str] = []
    max_steps: Annotated[int, Field(ge=1)] = 100_000
    max_epochs: Annotated[int, Field(ge=1)] = 1_000
    max_jobs: Annotated[int, Field(ge=1)] = 10_000
    max_seconds: Annotated[float, Field(gt=0)] = 3600.0

    def write(self, file: Path) -> None:
        """Write the settings where the node's client app finds them."""
        lines = [
            f"{key} = {json.dumps(value, ensure_ascii=False)}"
            for key, value in self.model_dump().items()
            if value is not None
        ]
        write_atomic(file, ("\n".join(lines) + "\n").encode())


def settings_of(given: Mapping[str, Any], where: str, sign: str = "") -> SiteSettings:
    """The settings given; all that is wrong with them at once. ``sign`` stands before the names of options."""
    try:
        settings = SiteSettings.model_validate(given)
    except ValidationError as error:
        raise ConfigError([f"{sign}{_problem(e)}" for e in error.errors()], where) from error
    if settings.test + settings.valid >= 1:
        both = f"{sign}test {settings.test:g} and {sign}valid {settings.valid:g}"
        raise ConfigError([f"{both} leave no rows to train on; their sum must be below 1"], where)
    return settings


def _problem(error: ErrorDetails) -> str:
    if error["type"] != "extra_forbidden":
        return explain(error)
    name = ".".join(map(str, error["loc"]))
    return f"{name}: unknown key{did_you_mean(name, SiteSettings.model_fields)}"


def read_site(file: Path) -> SiteSettings:
    """The settings in a file."""
    try:
        return settings_of(tomllib.loads(file.read_text(encoding="utf-8")), str(file))
    except OSError as error:
        raise InputError(f"The site's settings '{file}' cannot be read: {error.strerror}.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"not valid TOML: {error}"], str(file)) from error


def is_function(data: str) -> bool:
    """Whether the data are named as package.module:function or file.py:function, not as a path."""
    return own_code.is_reference(data)


def source_of(settings: SiteSettings) -> Source:
    """The clients of a site."""
    for place in settings.path:
        if place not in sys.path:
            sys.path.append(place)
    if not is_function(settings.data):
        return _read(settings)
    given = [name for name in ("label", "user", "size", "features") if getattr(settings, name) is not None]
    if given:
        raise InputError(f"--{given[0]} says how a file or folder is read; {settings.data} decides that itself.")
    return _own(settings.data)


def _read(settings: SiteSettings) -> Source:
    """A file or folder as a federation of this site's clients."""
    from fedquilt.data import Federation, Pixels, imports

    if settings.name is not None and settings.user is not None:
        raise InputError("--name makes this site one client, --user makes one of every user. Leave one of them out.")
    arrays = imports.open(
        Path(settings.data),
        settings.label,
        settings.user,
        settings.size,
        settings.features,
        categories=settings.categories,
    )
    mean, std = (tuple(v) if isinstance(v, list) else v for v in (settings.mean, settings.std))
    options: dict[str, Any] = {
        "test": settings.test,
        "valid": settings.valid,
        "seed": settings.seed,
        "classes": _classes(settings, arrays),
        "prepare": Pixels(mean, std) if arrays.x.dtype.name == "uint8" else None,
        "table": arrays.table,
    }
    if settings.name is not None:
        pair = arrays.pair
        own = pair if arrays.global_test is None else {"train": pair, "test": arrays.global_test}
        return Federation.from_clients({settings.name: own}, **options)
    if arrays.user is None:
        raise InputError(f"'{settings.data}' does not say whose rows are whose. Name the site: --name oslo.")
    return Federation.from_arrays(*arrays.pair, user=arrays.user, **options)


def _classes(settings: SiteSettings, arrays: Any) -> int | None:
    """How many classes there are. Names are numbered in their order, which is the same at every site only if every
    site has all of them; anything else would mix up the classes, and nobody would notice."""
    if arrays.classes is not None and arrays.classes != settings.classes:
        asked = "--classes is not given" if settings.classes is None else f"--classes is {settings.classes}"
        raise InputError(
            f"'{settings.data}' has class names, {arrays.classes} of them, and {asked}. Names mean the same at every "
            "site only if each has all classes of the federation: give their number as --classes, or number the "
            "labels (0, 1, ...) in the same way everywhere."
        )
    return settings.classes


def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        made: Any = importlib.import_module(module)
        for part in path.split("."):
            made = getattr(made, part)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"The data {name!r} cannot be imported: {error}. Give a file, a folder or package.module:function."
        ) from error
    return made


def _own(name: str) -> Source:
    made = own_code.load(own_code.where(name)) if ".py:" in name else _imported(name)
    source = made() if callable(made) else made
    if not all(hasattr(source, need) for need in ("ids", "evaluated", "site", "evaluation", "size", "fingerprint")):
        raise InputError(f"{name!r} gave a {type(source).__name__}, not a federation. See the page on own data.")
    return source  # type: ignore[no-any-return]
