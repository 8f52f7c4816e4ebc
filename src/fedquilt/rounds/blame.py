"""Whose reply the server cannot take: found by asking ``up`` again, which its purity allows, with fewer replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from fedquilt.core.exchange import Reply, S
from fedquilt.core.table import ClientId
from fedquilt.rounds.scale import Unsound

COMPARED = 100  # replies of which each is left out in turn, to see whether the others then go together
ANCHORS = 10  # replies of which each is tried with every other one

Replies = Iterator[Reply]
Guilty = dict[ClientId, str]  # whose replies are to blame, and why


@dataclass(frozen=True)
class Blame(Generic[S]):
    """Finds the replies that are to blame for an error. Where none is, or too many are, the error is raised again.

    Args:
        aggregate: The next state from replies; raises if they cannot be taken. It must not change what it is given.
        enough: Whether so many replies that are left are enough to blame the others.
    """

    aggregate: Callable[[Replies], S]
    enough: Callable[[int], bool]

    def among(self, replies: Sequence[Reply], error: Exception) -> tuple[S, Guilty]:
        """The next state without those that are to blame, and who they are."""
        if self._diverges():
            raise error
        alone = {r.client: reason for r in replies if (reason := self._why([r])) is not None}
        guilty = alone if len(alone) < len(replies) else {}
        rest = [r for r in replies if r.client not in guilty]
        if not self.enough(len(rest)):
            raise error
        if guilty:
            try:
                return self.aggregate(iter(rest)), guilty
            except Exception as another:
                error = another
        return self._without_one(rest, guilty, error)

    def one_by_one(self, coming: Replies, leave_out: Callable[[ClientId, str], None], error: Exception) -> S:
        """The next state from replies that come once more, each of which is tried alone before it is let in."""
        if self._diverges():
            raise error
        let_in = 0

        def tried() -> Replies:
            nonlocal let_in
            for reply in coming:
                reason = self._why([reply])
                if reason is not None:
                    leave_out(reply.client, reason)
                    continue
                let_in += 1
                yield reply

        found = self.aggregate(tried())
        if not self.enough(let_in):
            raise error
        return found

    def _without_one(self, rest: list[Reply], guilty: Guilty, error: Exception) -> tuple[S, Guilty]:
        """Each reply can be taken alone, but not all together: one of them may not go with the others."""
        if not 2 < len(rest) <= COMPARED or not self.enough(len(rest) - 1):
            raise error
        for odd in rest:
            try:
                found = self.aggregate(r for r in rest if r is not odd)
            except Exception:
                continue
            return found, {**guilty, odd.client: _odd(error)}
        return self._together(rest, guilty, error)

    def _together(self, rest: list[Reply], guilty: Guilty, error: Exception) -> tuple[S, Guilty]:
        """Several may not go with the others: most of the replies must go, one by one, with one of them."""
        for first in rest[:ANCHORS]:
            most = [r for r in rest if r is first or self._why([first, r]) is None]
            if not (len(rest) < 2 * len(most) < 2 * len(rest) and self.enough(len(most))):
                continue
            try:
                found = self.aggregate(iter(most))
            except Exception:
                continue
            kept = {r.client for r in most}
            return found, {**guilty, **{r.client: _odd(error) for r in rest if r.client not in kept}}
        raise error

    def _why(self, replies: Sequence[Reply]) -> str | None:
        """Why the server cannot take these replies; None if it can."""
        try:
            self.aggregate(iter(replies))
        except Exception as error:
            return _words(error)
        return None

    def _diverges(self) -> bool:
        """Whether the state leaves its scale without any reply. (An ``up`` that needs one may fail otherwise.)"""
        try:
            self.aggregate(iter(()))
        except Unsound:
            return True
        except Exception:
            return False
        return False


def _odd(error: Exception) -> str:
    return f"does not go with the other replies: {_words(error)}"


def _words(error: Exception) -> str:
    """What went wrong, for the log of dropped replies."""
    return str(error) if isinstance(error, Unsound) else f"the server cannot take it: {type(error).__name__}: {error}"
