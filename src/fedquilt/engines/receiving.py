"""A reply on arrival: every check that it must pass, for every method and on every engine."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedquilt.core.declared import check_declared, shown
from fedquilt.core.errors import FedquiltError
from fedquilt.core.exchange import Exchange
from fedquilt.core.limits import NO_LIMITS, Limits
from fedquilt.core.params import finite
from fedquilt.core.record import finite_scalars, tensors_in, unpack
from fedquilt.engines.client_side import Outcome, Wire
from fedquilt.engines.traffic import Load, load_of

MOST_EXAMPLES = 10**9
_LONGEST = 500  # characters of a reason


def received(
    outcome: Outcome, exchange: Exchange, state: Any, sent: Any, rows: int, limits: Limits = NO_LIMITS
) -> tuple[Wire, Any, Load]:
    """What travelled, the upload in it, and what that weighs; raises unless all of it can be used.

    In this order: the frame, the number of examples (of a client with so many ``rows``), the client's own new state,
    the codec, finite numbers, what the record declares of its fields, and what the method's ``check`` knows of them.
    """
    wire = unpack(outcome.upload, limits=limits)
    if not isinstance(wire, Wire):
        raise ValueError("malformed: not an upload")
    if type(wire.examples) is not int or not 0 < wire.examples <= MOST_EXAMPLES:
        raise ValueError(f"absurd weight: {shown(wire.examples)} examples")
    if wire.examples > rows > 0:
        raise ValueError(f"absurd weight: {wire.examples} examples of a client that has {rows}")
    if not outcome.sound:
        raise ValueError("non-finite numbers in the client's own state; try a smaller learning rate")
    upload = exchange.codec.decode(wire.upload, sent)
    if not (finite(tensors_in(upload)) and finite_scalars(upload)):
        raise ValueError("non-finite numbers in the upload; did training diverge? Try a smaller learning rate")
    check_declared(upload, exchange.upload)
    exchange.check(state, upload)
    limits.check_time()
    return wire, upload, load_of(exchange.uncoded(upload), wire.upload, outcome.upload, partial(Wire, wire.examples))


def words(error: Exception) -> str:
    """Why a reply was left out, for the ledger; part of it may have come from the client."""
    known = isinstance(error, ValueError | FedquiltError) and str(error)
    reason = str(error) if known else f"{type(error).__name__}: {error}"
    return reason if len(reason) <= _LONGEST else reason[:_LONGEST] + "..."
