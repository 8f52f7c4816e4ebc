"""The steps of a visit: the loss of a batch and its slopes, by autograd at first, then from a tape.

A step that looks like earlier ones (the same objective, the same forms of everything) is recorded once. The first steps
that are played, in each of the first visits, are also made by autograd; the two must agree to the last bit, or the tape
is thrown away. So the numbers do not depend on what was recorded, when or where.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.tape import CannotRecord, Player, Recorder, Tape
from fedquilt.core.tree import forms

EAGER = 5  # steps of one form that are made by autograd before one is recorded
TRIALS = 2  # visits in which the first step that is played is compared
MOST = 64  # tapes of one network

Eager = Callable[[], list[Tensor]]


@dataclass
class _Known:
    """What is known of steps of one form."""

    owner: object  # kept, so that its identity is not given to another
    seen: int = 0
    trials: int = 0
    refused: bool = False
    tape: Tape | None = None


@dataclass
class Tapes:
    """The tapes of one network."""

    known: dict[Any, _Known] = field(default_factory=dict)
    wanted: bool = field(default_factory=lambda: os.environ.get("FEDQUILT_TAPES", "1") != "0")

    def visit(self, owner: object, stable: Sequence[Tensor], more: Any = (), fresh: int | None = None) -> Visit:
        """A visit with these tensors; ``owner`` is the objective, and ``more`` whatever else its steps depend on.

        ``fresh``: so many results of a step are new tensors; a next step may overwrite the others. None: all are.
        """
        key = None
        if self.wanted:
            try:
                key = (id(owner), forms(list(stable)), forms(more), _sharing(stable), fresh)
            except TypeError:
                key = None
        return Visit(self, owner, stable, key, fresh)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, every step is made by autograd."""
        before, self.wanted = self.wanted, False
        try:
            yield
        finally:
            self.wanted = before

    def of(self, key: Any, owner: object) -> _Known:
        """What is known of steps of this form."""
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MOST:
                self.known.pop(next(iter(self.known)))
            found = self.known[key] = _Known(owner)
        return found


@dataclass
class Visit:
    """The steps of one visit to a client."""

    tapes: Tapes
    owner: object
    stable: Sequence[Tensor]
    key: Any
    fresh: int | None = None
    players: dict[Any, Player] = field(default_factory=dict)  # by thread and form: each works in its thread's memory

    def step(self, moving: Mapping[str, Tensor | None], eager: Eager) -> list[Tensor]:
        """What ``eager`` gives, which must depend on the stable tensors and on these alone."""
        if self.key is None:
            return eager()
        given = [t for t in moving.values() if t is not None]
        form = (tuple(moving), *[(t.shape, t.stride(), t.dtype) for t in given], _sharing(given), len(given))
        player = self.players.get((get_ident(), form))
        if player is None:
            return self._first(form, given, eager)
        with torch._C._AutoDispatchBelowAutograd():
            return list(player(*given))

    def _first(self, form: Any, moving: list[Tensor], eager: Eager) -> list[Tensor]:
        """A step of a form that this visit has not played yet."""
        known = self.tapes.of((self.key, form), self.owner)
        known.seen += 1
        if known.refused or known.seen <= EAGER:
            return eager()
        if known.tape is None:
            return self._record(known, moving, eager)
        try:
            player = known.tape.bound(self.stable)
        except RuntimeError:  # tensors of a kind that cannot be put there
            player = None
        if player is None or (known.trials < TRIALS and not self._agrees(known, player, moving, eager)):
            known.refused, known.tape = True, None
            return eager()
        self.players[get_ident(), form] = player
        with torch._C._AutoDispatchBelowAutograd():
            return list(player(*moving))

    def _record(self, known: _Known, moving: list[Tensor], eager: Eager) -> list[Tensor]:
        versions = [t._version for t in (*self.stable, *moving)]
        with Recorder() as recorder:
            outputs = eager()
        try:
            if versions != [t._version for t in (*self.stable, *moving)]:
                raise CannotRecord("it writes into what it was given")
            known.tape = Tape(recorder, self.stable, moving, outputs, self.fresh)
        except (CannotRecord, NotImplementedError):  # sparse tensors, say, have no place in memory
            known.refused = True
        return outputs

    def _agrees(self, known: _Known, player: Player, moving: list[Tensor], eager: Eager) -> bool:
        """Whether the tape gives what autograd gives; nothing is drawn by comparing them."""
        known.trials += 1
        before = torch.get_rng_state()
        expected = eager()
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        try:
            with torch._C._AutoDispatchBelowAutograd():
                found = player(*moving)
            same = all(_same(a, b) for a, b in zip(expected, found, strict=True))
            return same and torch.equal(after, torch.get_rng_state())
        except (RuntimeError, TypeError):
            return False
        finally:
            torch.set_rng_state(before)


def _sharing(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Which of these are one tensor: a tape knows such places as one, and elsewhere they may be two."""
    if len({id(t) for t in tensors}) == len(tensors):
        return ()
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(t), place) for place, t in enumerate(tensors))


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal in every bit and in layout."""
    if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
        return False
    return torch.equal(a, b) or (torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))
