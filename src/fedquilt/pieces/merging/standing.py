"""A merge that clients may join and leave later, without the others sending anything again."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedquilt.core.params import Params
from fedquilt.core.select import chosen
from fedquilt.pieces.merging.rule import moved
from fedquilt.pieces.merging.stitch import VoteSums
from fedquilt.records.record import record


@record
class Standing:
    """What the server keeps of a merge: where it began, sum w v and sum w M of every weight.

    Args:
        start: The weights before.
        total, votes: [1, ...] of each weight, in float64; sums of both are taken back as exactly as they were added,
            up to rounding in the 16th digit.
    """

    start: Params
    total: Params
    votes: Params

    @staticmethod
    def of(start: Params) -> Standing:
        """Nobody yet."""
        empty = {n: torch.zeros((1, *t.shape), dtype=torch.float64) for n, t in start.items()}
        return Standing(start, empty, empty)

    def joined(self, delta: Params, weight: float = 1.0) -> Standing:
        """With one more client, whose change tells which of its numbers were chosen; a negative weight takes it out."""
        masks = chosen({n: delta[n] for n in self.start})
        total, votes = dict(self.total), dict(self.votes)
        for name, mask in masks.items():
            tally = VoteSums(total[name].clone(), votes[name].clone())
            tally.add(delta[name], mask, weight)
            total[name], votes[name] = tally.total, tally.votes
        return replace(self, total=total, votes=votes)

    def left(self, delta: Params, weight: float = 1.0) -> Standing:
        """Without a client that had joined with this change."""
        return self.joined(delta, -weight)

    def weights(self) -> Params:
        """The merged weights."""
        return {n: moved(t, VoteSums(self.total[n], self.votes[n]).value()) for n, t in self.start.items()}
