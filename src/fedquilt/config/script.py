"""What a script gave where a recipe has names: a method, a federation, written down as far as others can make them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
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
        own: What only the script can make, each with the reason, in words.
        attackers: Malicious clients of a simulation, if there are any.
        method, federation: Descriptions; empty where only the script can make it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: str = ""
    data: str = ""
    own: list[str] = []
    attackers: str = ""
    method: Row = {}
    federation: Row = {}

    @classmethod
    def of(cls, method: Method, federation: Divided, own: list[str], kept: bool = True, attackers: str = "") -> Script:
        """What can be written down of these objects; ``own`` is what the script gave beside them. A run that is
        ``kept``, to go on later, must have a method that can be told from others."""
        from fedquilt.core.describe import describe

        told = {"method": _written(lambda: describe(method)), "federation": _written(lambda: _origin(federation))}
        lacking = [f"its {name}: {why}" for name, why in told.items() if isinstance(why, str)]
        known: Row = {name: what for name, what in told.items() if not isinstance(what, str)}
        kind = _kind(method) if kept else ""
        return cls(kind=kind, data=federation.fingerprint(), own=[*lacking, *own], attackers=attackers, **known)

    def identity(self, *settings: object) -> str:
        """What tells its snapshots from those of other runs."""
        given = (*settings, self.attackers) if self.attackers else settings
        return hashlib.sha256(repr((self.kind, *given)).encode()).hexdigest()[:8]

    def made_method(self) -> Method:
        """The method, made again."""
        found: Method = self._made(self.method)
        return found

    def made_federation(self) -> Federation:
        """The federation, made again; refused if its rows are others now."""
        found: Federation = self._made(self.federation)
        if found.fingerprint() != self.data:
            raise InputError("The data are not those the run began with: the files they were read from have changed.")
        return found

    def _made(self, description: Row) -> Any:
        from fedquilt.core.describe import READING, build

        if self.own:
            raise InputError(
                "A script began this run, and only that script can go on with it or use its models: "
                f"{'; '.join(self.own)}. There, the same call with the same folder=... goes on where the run stopped."
            )
        return build(_read(description), (*ROOMS, *READING))


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
        check_names(found, (*ROOMS, *READING))
        return dict(_plain(found))
    except InputError as error:
        return str(error).removesuffix(".")


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
