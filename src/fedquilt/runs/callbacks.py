"""Callbacks: code that hears of a run as it goes, the user's and the library's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedquilt.core.exchange import Reply
from fedquilt.core.plain import JSON, Row
from fedquilt.errors import CallbackError
from fedquilt.records.record import pack

if TYPE_CHECKING:
    from fedquilt.runs.play import Run
    from fedquilt.runs.snapshot import Snapshot


class Callback:
    """Hears of a run: subclass it, and write the methods you need. Rounds are counted from 1.

    A round goes: ``on_round_begin``, ``on_reply`` for each reply, ``on_evaluate`` if models are scored,
    ``on_round_end``, and ``on_snapshot`` if a snapshot is written. When a run is resumed, the rounds after its last
    snapshot are played again, and callbacks hear of them again: what a callback must know of the rounds before belongs
    into :meth:`state`.

    A callback that raises ends the run with a :class:`~fedquilt.errors.CallbackError` that names it. What the last
    snapshot holds is safe, and the same call goes on from there.

    Example:
        >>> class Printed(Callback):
        ...     def on_round_end(self, snapshot):
        ...         print(snapshot.round, snapshot.metrics["train_loss"])
    """

    def on_run_begin(self, run: Run) -> None:
        """The run begins or goes on: ``run.done`` rounds are done. Comes after :meth:`restore`."""

    def on_round_begin(self, round: int) -> None:
        """A round is about to be played."""

    def on_reply(self, round: int, reply: Reply[Any], state: Any) -> None:
        """A client's reply passed its checks; ``state`` is the server's before the exchange.

        A reply that the server then cannot take is left out of the round; large replies may come twice.
        """

    def on_evaluate(self, snapshot: Snapshot) -> Mapping[str, float] | None:
        """Models were scored (``snapshot.evaluations``). Numbers that are returned are added to the metrics of the
        round."""

    def on_round_end(self, snapshot: Snapshot) -> None:
        """A round was played, and its rows are written."""

    def on_snapshot(self, round: int) -> None:
        """All rounds so far are safe in the run's folder: a run that ends now goes on from here."""

    def on_run_end(self, result: Row | None) -> None:
        """The run is over, and this is its result; None if it was interrupted or failed, and may be resumed."""

    def state(self) -> Mapping[str, JSON]:
        """What a snapshot must keep of this callback: plain values, tensors and records. Asked after each round that
        ends with a snapshot."""
        return {}

    def restore(self, state: Mapping[str, JSON]) -> None:
        """Go on from what :meth:`state` gave when the snapshot was written; not called without one."""


class Callbacks:
    """The callbacks of a run in the order they are told: the library's own, then those that were given.

    Errors of the library's own pass as they are; those of others name their callback.
    """

    def __init__(self, own: Sequence[Callback], given: Sequence[Callback]) -> None:
        names = [type(callback).__name__ for callback in given]
        numbered = (f"{name}#{i}" if names.count(name) > 1 else name for i, name in enumerate(names))
        self.own, self.given = tuple(own), dict(zip(numbered, given, strict=True))

    def call(self, hook: str, *told: object) -> list[Any]:
        """Tell all of them, the library's own first; what those that were given answered."""
        for callback in self.own:
            getattr(callback, hook)(*told)
        return [self._call(name, hook, *told) for name in self.given]

    def hear(self, hook: str) -> bool:
        """Whether anybody has something to do there."""
        return any(getattr(type(c), hook) is not getattr(Callback, hook) for c in (*self.own, *self.given.values()))

    def state(self) -> Row:
        """The states of those that have one, by name."""
        states = {name: dict(self._call(name, "state")) for name in self.given}
        for name, state in states.items():
            try:
                pack(state)
            except Exception as error:
                raise _failed(name, "state", error) from error
        return {name: state for name, state in states.items() if state}

    def restore(self, states: Mapping[str, JSON]) -> None:
        """Give each its own back."""
        for name in self.given:
            if name in states:
                self._call(name, "restore", states[name])

    def end(self, result: Row | None) -> list[CallbackError]:
        """Tell all of them that the run is over, also if one fails; the errors of those that were given."""
        for callback in self.own:
            callback.on_run_end(result)
        errors = []
        for name in self.given:
            try:
                self._call(name, "on_run_end", result)
            except CallbackError as error:
                errors.append(error)
        return errors

    def _call(self, name: str, hook: str, *told: object) -> Any:
        try:
            return getattr(self.given[name], hook)(*told)
        except Exception as error:
            raise _failed(name, hook, error) from error


def _failed(name: str, hook: str, error: Exception) -> CallbackError:
    return CallbackError(
        f"The callback {name} failed in {hook}: {type(error).__name__}: {error}. What the last snapshot holds is kept; "
        "fix or remove the callback, and repeat the call to continue."
    )
