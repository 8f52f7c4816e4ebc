"""What a script gave where a recipe has names: a method, a federation, written down as far as others can make them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from fedquilt.core.plain import JSON, Row
from fedquilt.errors import InputError

if TYPE_CHECKING:  # describing needs torch, which light commands do without
    from fedquilt.core.exchange import Method
    from fedquilt.core.table import Divided
    from fedquilt.data import Federation

ROOMS = (  # whose names a description may call, beside those of methods and their parts
    "fedquilt.core.seed",
    "fedquilt.data.federation",
    "fedquilt.data.imports",
    "fedquilt.data.partitions",
    "fedquilt.data.transforms",
)


class Script(BaseModel):
    """The objects of a run that a script began, in the place of a recipe's model, method, train and data.

    Args:
        kind: The hash of its method; '' where nothing is kept that has to be told from other runs.
        data: The fingerprint of its federation.
        own: What only the script can make, and why.
        method, federation, checks, attackers: Descriptions; empty where there is none, or only the script can make it.
        others: What else tells a run from another one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: str = ""
    data: str = ""
    own: dict[str, str] = {}
    method: Row = {}
    federation: Row = {}
    checks: Row = {}
    attackers: Row = {}
    others: list[str] = []

    @classmethod
    def of(
        cls,
        method: Method,
        federation: Divided,
        beside: Mapping[str, object],
        own: Mapping[str, str],
        kept: bool = True,
    ) -> Script:
        """What can be written down of these objects and those ``beside`` them; ``own`` is what never can. A run that is
        ``kept``, to go on later, must have a method that can be told from others."""
        from fedquilt.core.describe import describe

        given = {name: value for name, value in beside.items() if value is not None}
        told = {name: _written(partial(describe, value)) for name, value in {"method": method, **given}.items()}
        told["federation"] = _written(partial(_origin, federation))
        lacking = {name: why for name, why in told.items() if isinstance(why, str)}
        known: Row = {name: what for name, what in told.items() if not isinstance(what, str)}
        return cls(
            kind=_kind(method) if kept else "",
            data=federation.fingerprint(),
            own={**lacking, **own},
            others=[repr(value) for value in given.values()],
            **known,
        )

    def identity(self, *settings: object) -> str:
        """What tells its snapshots from those of other runs."""
        return hashlib.sha256(repr((self.kind, *settings, *self.others)).encode()).hexdigest()[:8]

    def used_method(self) -> Method:
        """The method for what it has learned, where nothing is trained or scored: that needs none of the rest."""
        try:
            found: Method = self.made("method")
        except InputError as error:
            raise InputError(
                f"{error} Or give the method: load_model(folder, method=method), and so for predict and export_model."
            ) from error
        return found

    def made_federation(self) -> Federation:
        """The federation, made again; refused if its rows are others now."""
        found: Federation = self.made("federation")
        if found.fingerprint() != self.data:
            raise InputError(
                "The data have changed since the run started: the files they were read from are different."
            )
        return found

    def made(self, name: str) -> Any:
        """One of the objects, made again; None for one that there is not. Refused if only the script can make it."""
        from fedquilt.core.describe import READING, build

        self.refuse(name)
        description = getattr(self, name)
        return build(_read(description), (*ROOMS, *READING)) if description else None

    def refuse(self, *names: str) -> None:
        """Raise if one of these, or without names anything of the run, is the script's own."""
        lacking = [f"its {name}: {why}" for name, why in self.own.items() if name in names or not names]
        if lacking:
            raise InputError(
                f"A script began this run, and only that script has {'; '.join(lacking)}. There, the same call with "
                "the same folder=... continues where the run stopped."
            )


def _kind(method: Method) -> str:
    """The hash of a method, of which no network has the setting that cannot change the numbers."""
    from fedquilt.core.describe import describe
    from fedquilt.records.record import pack

    try:
        return hashlib.sha256(pack(_without(describe(method), "capture"), checksum=False)).hexdigest()
    except InputError as error:
        raise InputError(
            f"A run with a folder must be able to tell its method from others, so that the right one resumes. {error}"
        ) from error


def _without(description: object, name: str) -> Any:
    if isinstance(description, dict):
        left = {k: _without(v, name) for k, v in description.items()}
        if left.get("make") == "fedquilt.core.net:Net":
            left["kwargs"].pop(name, None)
        return left
    return [_without(v, name) for v in description] if isinstance(description, list) else description


def _origin(federation: Divided) -> Row:
    found: Row | None = getattr(federation, "origin", None)
    if found is None:
        raise InputError("it was not made from a file or a named data set alone")
    return found


def _written(described: Callable[[], Any]) -> Row | str:
    """A description as a file of settings takes it, or why there is none."""
    from fedquilt.core.describe import READING, check_names

    try:
        found = described()
        plain = dict(_plain(found))
        check_names(found, (*ROOMS, *READING))
        return plain
    except InputError as error:
        what, foreign, _ = str(error).partition(" is not among the trusted packages")
        return f"{what} is not of this library" if foreign else what.removesuffix(".")


def _plain(value: Any) -> JSON:
    """A description in which everything is a text, a finite number, a list or a section."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return {_VALUE: str(value)}
    if not isinstance(value, bool | int | float | str):
        raise InputError(f"it holds a {type(value).__name__}, which no file of settings can hold")
    return value


_VALUE = "="  # no argument has this name
_VALUES = {"None": None, "inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def _read(value: JSON) -> Any:
    """The description that was written."""
    if isinstance(value, dict):
        return _VALUES[value[_VALUE]] if _VALUE in value else {name: _read(inner) for name, inner in value.items()}
    return [_read(inner) for inner in value] if isinstance(value, list) else value
