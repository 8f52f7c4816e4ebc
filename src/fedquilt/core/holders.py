"""What most methods ask of the records of others: a shared part, a private part, a change. Records of any type do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, Protocol

from fedquilt.core.params import Params

Fixed = Mapping[str, Any]  # what an objective reads and nothing changes: tensors, numbers, params and tuples of them


class HasShared(Protocol):
    """A server's state or a download with a model for everybody."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def shared(self) -> Params:
        """The shared part of the model."""
        ...


class HasPrivate(Protocol):
    """A client's state with a part of the model that stays home."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def private(self) -> Params:
        """The private part of the model."""
        ...


class HasDelta(Protocol):
    """An upload with a change."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def delta(self) -> Params:
        """How the shared part changed, after minus before."""
        ...
