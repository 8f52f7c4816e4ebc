"""The steps of a client update: the loss of a batch and its gradients, by autograd at first, then from captured
kernels.

A step that looks like earlier ones (the same objective, the same forms of everything) is recorded once. The first steps
that are played, in each of the first client updates, are also made by autograd; the two must agree to the last bit, or
the captured step is thrown away. So the numbers do not depend on what was recorded, when or where.

A user's network or loss must first be shown pure (``core/capture/purity.py``), and its steps are compared again and
again: the 1st, 2nd, 4th, 8th, ... that is played and every 101st. A step that is compared is made plainly, so one
difference ends the capture and the client update goes on as if it had never been.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import get_ident
from typing import Literal

import torch
from torch import Tensor, nn

from fedquilt.core.capture.marks import Mark, generators
from fedquilt.core.capture.purity import PurityWatch, ReadWatch, WatchedObjective
from fedquilt.core.resident import Resident
from fedquilt.core.tree import forms
from fedquilt.kernels import CannotRecord, CapturedStep, Player, Recorder, enabled

EAGER = 5  # steps of one form that are made by autograd before one is recorded
TRIALS = 2  # client updates in which the first step that is played is compared
SPACING = 101  # of a user's steps that are played, every so many is compared; a prime, so that all places take turns
MOST = 64  # captured steps of one network

_SWITCHES = ("FEDQUILT_CAPTURE", "FEDQUILT_TAPES")  # either of these set to 0 ends capture; the second is of 0.1

Eager = Callable[[], list[Tensor]]
Capture = Literal["auto"] | bool
log = logging.getLogger("fedquilt")


@dataclass
class _Known:
    """What is known of steps of one form."""

    owner: object  # kept, so that its identity is not given to another
    seen: int = 0
    trials: int = 0
    played: int = 0
    refused: bool = False
    captured: CapturedStep | None = None
    marks: Mapping[str, Mark] = field(default_factory=dict)  # of what a user's code can reach, when it was recorded


@dataclass
class CapturedSteps:
    """The captured steps of one network.

    Args:
        resident: Its module; None where a network is being built.
        capture: "auto": the library's own steps, and a user's that are shown pure. True: a user's without that.
        build: What builds the network, and the module that it builds, where that is what is captured.
    """

    resident: Resident | None = None
    capture: Capture = "auto"
    build: tuple[object, nn.Module] | None = None
    known: dict[Hashable, _Known] = field(default_factory=dict)
    wanted: bool = field(default_factory=lambda: enabled() and "0" not in map(os.environ.get, _SWITCHES))
    bound: int = 0  # how often steps of a form were put captured for a client update
    _watches: dict[int, WatchedObjective] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def update(
        self, owner: object, stable: Sequence[Tensor], more: object = (), fresh: int | None = None
    ) -> UpdateSteps:
        """A client update with these tensors; ``owner`` is the objective, and ``more`` whatever else its steps depend
        on.

        ``fresh``: so many results of a step are new tensors; a next step may overwrite the others. None: all are.
        """
        key, watch = None, None
        if self.wanted and self.capture is not False:
            found = self._watched(owner)
            watch = found.watch
            try:
                if not self._refuses(found):
                    key = (id(owner), forms(list(stable)), forms(more), _sharing(stable), fresh)
            except TypeError:
                key = None
        return UpdateSteps(self, owner, stable, key, fresh, watch)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, every step is made by autograd."""
        before, self.wanted = self.wanted, False
        try:
            yield
        finally:
            self.wanted = before

    def of(self, key: Hashable, owner: object) -> _Known:
        """What is known of steps of this form."""
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MOST:
                self.known.pop(next(iter(self.known)))
            found = self.known[key] = _Known(owner)
        return found

    def tell(self, why: str, level: int = logging.INFO) -> None:
        """Say once why steps are not captured."""
        if why not in self._told:
            self._told.add(why)
            module = self.build[1] if self.build else self.resident and self.resident.module
            what = "steps" if self.build is None else "first values"
            log.log(level, "%s: its %s are not captured but made plainly: %s.", type(module).__name__, what, why)

    def _refuses(self, found: WatchedObjective) -> bool:
        """Whether nothing is captured now, which is said."""
        why = found.watch.ended or _debugged() if found.watch is not None else None
        why = why or (found.hooks.found() if self.capture == "auto" else None)
        if why is not None:
            self.tell(why)
        return why is not None

    def _watched(self, owner: object) -> WatchedObjective:
        found = self._watches.get(id(owner))
        if found is None:
            if len(self._watches) >= MOST:
                self._watches.pop(next(iter(self._watches)))
            strict = self.capture == "auto"
            if self.build is not None:
                found = WatchedObjective.building(*self.build, strict)
            else:
                found = WatchedObjective.of(owner, self.resident, strict)
            self._watches[id(owner)] = found
        return found


@dataclass
class UpdateSteps:
    """The steps of one client update to a client."""

    captured_steps: CapturedSteps
    owner: object
    stable: Sequence[Tensor]
    key: Hashable
    fresh: int | None = None
    watch: PurityWatch | None = None  # of a user's code
    players: dict[Hashable, tuple[Player, _Known]] = field(
        default_factory=dict
    )  # by thread, whose memory it is, and form

    def step(self, moving: Mapping[str, Tensor | None], eager: Eager) -> list[Tensor]:
        """What ``eager`` gives, which must depend on the stable tensors and on these alone."""
        if self.key is None:
            return eager()
        given = [t for t in moving.values() if t is not None]
        form = (tuple(moving), *[(t.shape, t.stride(), t.dtype) for t in given], _sharing(given), len(given))
        found = self.players.get((get_ident(), form))
        if found is None:
            return self._first(form, given, eager)
        if self.watch is not None:
            return self._again(*found, given, eager)
        with torch._C._AutoDispatchBelowAutograd():
            return list(found[0](*given))

    def _first(self, form: Hashable, moving: list[Tensor], eager: Eager) -> list[Tensor]:
        """A step of a form that this client update has not played yet."""
        known = self.captured_steps.of((self.key, form), self.owner)
        known.seen += 1
        if known.refused or (self.watch is not None and self.watch.ended is not None):
            return eager()
        if known.seen <= EAGER:
            return self._plain(known, eager)
        if known.captured is None:
            return self._record(known, moving, eager)
        try:
            player = known.captured.bound(self.stable)
        except RuntimeError:  # tensors of a kind that cannot be put there
            known.refused, known.captured = True, None
            return eager()
        self.captured_steps.bound += 1
        self.players[get_ident(), form] = player, known
        if self.watch is not None:
            changed = _changed(known.marks, self.watch.look())
            if changed is not None:
                self._end(known, f"{changed} has changed between steps")
                return eager()
            return self._again(player, known, moving, eager)
        if known.trials < TRIALS:
            return self._compared(known, player, moving, eager)
        with torch._C._AutoDispatchBelowAutograd():
            return list(player(*moving))

    def _again(self, player: Player, known: _Known, moving: list[Tensor], eager: Eager) -> list[Tensor]:
        """A step of a user's code that is played, or compared if it is time."""
        if self.watch is not None and self.watch.ended is not None:  # found out in another thread
            return eager()
        known.played += 1
        if known.played & (known.played - 1) == 0 or known.played % SPACING == 0:
            return self._compared(known, player, moving, eager)
        with torch._C._AutoDispatchBelowAutograd():
            return list(player(*moving))

    def _plain(self, known: _Known, eager: Eager) -> list[Tensor]:
        """A step by autograd, with an eye on what it changes if it is a user's."""
        if self.watch is None or not self.watch.strict:
            return eager()
        before, drawn = self.watch.look(), generators()
        moved = _changed(known.marks or before, before)
        outputs = eager()
        after = self.watch.look()
        changed = _changed(before, after) or self.watch.replaced()
        if drawn != generators():
            changed = "a generator of Python's or numpy's"
        if self.watch.ended is not None:
            self._end(known, self.watch.ended)
        elif changed is not None:
            self._end(known, f"a step changes {changed}")
        elif moved is not None:
            self._end(known, f"{moved} has changed between steps")
        known.marks = after
        return outputs

    def _end(self, known: _Known, why: str) -> None:
        """Nothing of this form is captured any more; nor anything else of a user's objective."""
        known.refused, known.captured = True, None
        self.players.clear()
        if self.watch is not None:
            late = known.played > 2  # by then, some steps were played and not compared
            self.captured_steps.tell(why, logging.WARNING if late else logging.INFO)
            self.watch.ended = why

    def _record(self, known: _Known, moving: list[Tensor], eager: Eager) -> list[Tensor]:
        versions = [t._version for t in (*self.stable, *moving)]
        reading, recorder = ReadWatch(), Recorder()

        def recorded() -> list[Tensor]:
            with reading if self.watch is not None else nullcontext(), recorder:
                return eager()

        outputs = self._plain(known, recorded)
        try:
            if versions != [t._version for t in (*self.stable, *moving)]:
                raise CannotRecord("it writes into what it was given")
            if reading.found:
                raise CannotRecord(reading.found)
            if not known.refused:
                known.captured = CapturedStep(recorder, self.stable, moving, outputs, self.fresh)
        except (CannotRecord, NotImplementedError) as error:  # sparse tensors, say, have no place in memory
            known.refused = True
            if self.watch is not None:
                self.captured_steps.tell(str(error).split("\n")[0])
        return outputs

    def _compared(self, known: _Known, player: Player, moving: list[Tensor], eager: Eager) -> list[Tensor]:
        """A plain step, after which the captured step must give the same; nothing is drawn by comparing them."""
        known.trials += 1
        before = torch.get_rng_state()
        expected = self._plain(known, eager)
        after = torch.get_rng_state()
        if known.refused:
            return expected
        torch.set_rng_state(before)
        try:
            with torch._C._AutoDispatchBelowAutograd():
                found = player(*moving)
            same = all(_same(a, b) for a, b in zip(expected, found, strict=True))
            same = same and torch.equal(after, torch.get_rng_state())
        except (RuntimeError, TypeError):
            same = False
        finally:
            torch.set_rng_state(after)
        if not same:
            since = "; steps since the last comparison may have differed, too" if known.played > 2 else ""
            self._end(known, f"a captured step differs from the plain one{since}")
        return expected


def _debugged() -> str | None:
    """That a debugger is at work, which may stop inside a user's code."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if sys.gettrace() is None and (monitoring is None or monitoring.get_tool(monitoring.DEBUGGER_ID) is None):
        return None
    return "a debugger, or another trace function, is set, and may stop in them"


def _changed(before: Mapping[str, Mark], after: Mapping[str, Mark]) -> str | None:
    """The name of a mark that is not what it was."""
    if before == after:
        return None
    return next((n for n in (*after, *before) if before.get(n) != after.get(n)), None)


def _sharing(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Which of these are one tensor: a captured step knows such places as one, and elsewhere they may be two."""
    if len({id(t) for t in tensors}) == len(tensors):
        return ()
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(t), place) for place, t in enumerate(tensors))


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal in every bit and in layout."""
    if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
        return False
    return torch.equal(a, b) or (torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))
