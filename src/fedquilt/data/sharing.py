"""A federation as flat tensors and a plain layout, so that worker processes can hold it without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId
from fedquilt.data.rows import ClientRows
from fedquilt.errors import InputError

if TYPE_CHECKING:
    from fedquilt.data.federation import Federation


def tensors(data: Federation) -> dict[str, Tensor]:
    """Every tensor: columns.NAME, global.NAME, and index and offsets of each kind of rows."""
    found = {f"columns.{name}": column for name, column in data.columns.items()}
    found |= {f"global.{name}": column for name, column in (data.global_columns or {}).items()}
    for kind in _kinds(data):
        rows: ClientRows = getattr(data, kind)
        found |= {f"{kind}.index": rows.index, f"{kind}.offsets": rows.offsets}
    return found


def layout(data: Federation) -> Row:
    """Ids, column names and the number of classes, as plain values."""
    return {
        "ids": list(data.ids),
        "evaluated": None if data.evaluated is data.ids else list(data.evaluated),
        "columns": list(data.columns),
        "global": None if data.global_columns is None else list(data.global_columns),
        "classes": data.classes,
        "groups": None if data.groups is None else [data.groups[client] for client in data.evaluated],
    }


def parts(tensors: Mapping[str, Tensor], layout: Mapping[str, JSON]) -> Row:
    """What a federation is made of, on these tensors."""
    try:
        ids = tuple(map(_id, layout["ids"]))
        train, valid, test = (_rows(tensors, kind) for kind in ("train", "valid", "test"))
        wide, planted = layout["global"], layout["groups"]
        evaluated = ids if layout["evaluated"] is None else tuple(map(_id, layout["evaluated"]))
        return {
            "columns": {name: tensors[f"columns.{name}"] for name in layout["columns"]},
            "ids": ids,
            "train": train,
            "valid": valid,
            "evaluated": evaluated,
            "evaluation_valid": _rows(tensors, "evaluation_valid") if "evaluation_valid.index" in tensors else valid,
            "test": test,
            "global_columns": None if wide is None else {name: tensors[f"global.{name}"] for name in wide},
            "classes": layout["classes"],
            "groups": None if planted is None else dict(zip(evaluated, planted, strict=True)),
            "unlabelled": _rows(tensors, "unlabelled") if "unlabelled.index" in tensors else None,
        }
    except KeyError as error:
        raise InputError(
            f"The shared federation lacks {error}. Give all of columns_for_sharing() and layout()."
        ) from error


def _kinds(data: Federation) -> tuple[str, ...]:
    own = () if data.evaluation_valid is data.valid else ("evaluation_valid",)
    return ("train", "valid", "test", *own, *(() if data.unlabelled is None else ("unlabelled",)))


def _rows(tensors: Mapping[str, Tensor], kind: str) -> ClientRows:
    return ClientRows(tensors[f"{kind}.index"], tensors[f"{kind}.offsets"])


def _id(value: object) -> ClientId:
    return tuple(map(_id, value)) if isinstance(value, list | tuple) else value  # JSON has no tuples
