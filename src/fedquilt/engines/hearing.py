"""The server listens: what the replies of an exchange make of its state, and whose reply it cannot take.

Replies stream into ``up`` and are let go. A few of them, as long as they are small, are also held: should ``up`` fail,
or make a state that cannot be, it is asked again with one reply at a time, which its purity allows, and then without
those that it cannot take. Where replies are too large to be held, the clients are asked once more instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedquilt.core.exchange import Reply
from fedquilt.core.record import tensors_in
from fedquilt.engines.scale import Unsound

HELD = 64 * 2**20  # bytes of replies
_COMPARED = 100  # replies of which each is left out in turn, to see whether the others then go together
_ANCHORS = 10  # replies of which each is tried with every other one

Replies = Iterator[Reply[Any]]
Fold = Callable[[Replies], Any]  # what replies make of the state, or an error


class Listening:
    """One exchange's replies.

    Args:
        fold: The next state from replies; raises if they cannot be taken. It must not change what it is given.
        ask: The replies of the cohort, from the beginning.
        leave_out: Told of every client whose reply is to blame, and why.
        enough: Whether so many replies that are left of so many are enough to blame the others.
    """

    def __init__(
        self, fold: Fold, ask: Callable[[], Replies], leave_out: Callable[[Any, str], None],
        enough: Callable[[int], bool],
    ) -> None:  # fmt: skip
        self.fold, self.ask, self.leave_out, self.enough = fold, ask, leave_out, enough
        self.broken = False  # whether the replies failed to come, which is no fault of the server's
        self._held: list[Reply[Any]] | None = []
        self._bytes = 0

    def state(self) -> Any:
        """The next state. Raises what ``fold`` does when nobody's reply is to blame, or too many are."""
        stream = self._passing()
        try:
            return self.fold(stream)
        except Exception as error:
            if self.broken:
                raise
            for _ in stream:  # those under way are heard, too
                pass
            return self._mended(error) if self._held is not None else self._asked_again(error)

    def _passing(self) -> Replies:
        """The replies; they are held as long as they are small."""
        for reply in self._coming():
            self._hold(reply)
            yield reply

    def _coming(self) -> Replies:
        try:
            yield from self.ask()
        except Exception:
            self.broken = True
            raise

    def _hold(self, reply: Reply[Any]) -> None:
        if self._held is None:
            return
        self._held.append(reply)
        self._bytes += sum(t.numel() * t.element_size() for t in tensors_in(reply.upload))
        if self._bytes > HELD:
            self._held = None

    def _mended(self, error: Exception) -> Any:
        """The state without the replies that are to blame."""
        found, guilty = self._without_culprits(self._held or [], error)
        for client, reason in guilty.items():
            self.leave_out(client, reason)
        return found

    def _without_culprits(self, heard: Sequence[Reply[Any]], error: Exception) -> tuple[Any, dict[Any, str]]:
        if self._diverges():
            raise error
        alone = {r.client: reason for r in heard if (reason := self._why([r])) is not None}
        guilty = alone if len(alone) < len(heard) else {}
        rest = [r for r in heard if r.client not in guilty]
        if not self.enough(len(rest)):
            raise error
        if guilty:
            try:
                return self.fold(iter(rest)), guilty
            except Exception as another:
                error = another
        return self._without_one(rest, guilty, error)

    def _without_one(
        self, rest: list[Reply[Any]], guilty: dict[Any, str], error: Exception
    ) -> tuple[Any, dict[Any, str]]:
        """Each reply can be taken alone, but not all together: one of them may not go with the others."""
        if 2 < len(rest) <= _COMPARED and self.enough(len(rest) - 1):
            for odd in rest:
                try:
                    found = self.fold(r for r in rest if r is not odd)
                except Exception:
                    continue
                return found, {**guilty, odd.client: f"does not go with the other replies: {_words(error)}"}
            return self._together(rest, guilty, error)
        raise error

    def _together(self, rest: list[Reply[Any]], guilty: dict[Any, str], error: Exception) -> tuple[Any, dict[Any, str]]:
        """Several may not go with the others: most of the replies must go, one by one, with one of them."""
        for first in rest[:_ANCHORS]:
            most = [r for r in rest if r is first or self._why([first, r]) is None]
            if len(rest) < 2 * len(most) < 2 * len(rest) and self.enough(len(most)):
                try:
                    found = self.fold(iter(most))
                except Exception:
                    continue
                odd = {r.client for r in rest} - {r.client for r in most}
                why = f"does not go with the other replies: {_words(error)}"
                return found, {**guilty, **{r.client: why for r in rest if r.client in odd}}
        raise error

    def _why(self, replies: Sequence[Reply[Any]]) -> str | None:
        """Why the server cannot take these replies; None if it can."""
        try:
            self.fold(iter(replies))
        except Exception as error:
            return _words(error)
        return None

    def _diverges(self) -> bool:
        """Whether the state leaves its scale without any reply. (An ``up`` that needs one may fail otherwise.)"""
        try:
            self.fold(iter(()))
        except Unsound:
            return True
        except Exception:
            return False
        return False

    def _asked_again(self, error: Exception) -> Any:
        """The clients are asked once more, and each reply is tried alone before it is let in."""
        if self._diverges():
            raise error
        let_in = 0

        def tried() -> Replies:
            nonlocal let_in
            for reply in self._coming():
                reason = self._why([reply])
                if reason is not None:
                    self.leave_out(reply.client, reason)
                    continue
                let_in += 1
                yield reply

        found = self.fold(tried())
        if not self.enough(let_in):
            raise error
        return found


def _words(error: Exception) -> str:
    """What went wrong, for the ledger."""
    return str(error) if isinstance(error, Unsound) else f"the server cannot take it: {type(error).__name__}: {error}"
