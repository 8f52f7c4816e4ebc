"""Checks of the replies of one exchange, before the server takes them.

They need all replies of the cohort at once, which are held until then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist, median
from typing import Any

import numpy as np
import torch

from fedquilt.core.exchange import Reply, Sifted
from fedquilt.core.params import scale
from fedquilt.core.table import ClientId
from fedquilt.errors import InputError
from fedquilt.pieces.robust.attacks import moved
from fedquilt.pieces.robust.vectors import Vectors, length, quantile, shortened

_FEWEST = 4  # replies that tell what is usual
_DRAWN = 100  # replies up to which the limit is drawn; of more, it grows as that of normal numbers with known deviation
_PACE = 0.2  # of the running quantile
_MAD = 1.4826  # times the median of distances from the median is a normal deviation


@dataclass(frozen=True)
class CohortChecks:
    """Leave out replies that stand out from their cohort, before any aggregator sees them; bound what one weighs, and
    how far it reaches. Every decision is in ``dropped.jsonl`` with its numbers.

    A change stands out by its length, or by its direction. Lengths are compared by their logarithms, directions by the
    mean cosine with the others: both by how many deviations they are from the cohort's median, where a deviation is
    estimated by the median distance from it. The limit is such that, were honest lengths log-normal and honest cosines
    normal, a round of honest clients would lose a reply with probability ``false_alarms`` at most; it is found by
    drawing such rounds, because so few distances estimate a deviation badly. Directions that are too odd are left out,
    lengths that are too long; short changes do no harm.

    Where honest clients really differ, directions tell little: a client with a class of its own stands out as an
    attacker does. Turn ``direction`` off there.

    Args:
        false_alarms: The probability with which a round of honest clients loses a reply.
        length, direction: What is looked at.
        most_share: Whose samples are more than this share of the cohort's count as if they were this share; of cohorts
            too small for that, all count the same.
        shorten: Changes longer than this quantile of the lengths of earlier rounds are shortened to it. It follows the
            lengths from round to round by a factor exp(0.2 (shorten - share of changes within)); attackers that are
            fewer than 1 - shorten cannot drive it up. The first round takes its own quantile. None shortens nothing.
        strikes: After so many replies in a row that stood out, a client's replies are left out for ``suspended``
            rounds, whatever they are; None forgets.
        suspended: See above.

    Reference: Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021 (the running quantile).

    Example:
        >>> checks = CohortChecks(false_alarms=0.01, most_share=0.3)
    """

    false_alarms: float = 0.01
    length: bool = True
    direction: bool = True
    most_share: float | None = None
    shorten: float | None = None
    strikes: int | None = 3
    suspended: int = 10

    def __post_init__(self) -> None:
        if not 0.001 <= self.false_alarms <= 0.5:
            raise InputError(f"checks: false_alarms is a probability from 0.001 to 0.5, got {self.false_alarms}.")
        if self.most_share is not None and not 0 < self.most_share <= 1:
            raise InputError(f"checks: most_share is a share in (0, 1], got {self.most_share}.")
        if self.shorten is not None and not 0 < self.shorten < 1:
            raise InputError(f"checks: shorten is a quantile in (0, 1), got {self.shorten}.")
        if self.strikes is not None and self.strikes < 1:
            raise InputError(f"checks: strikes is a count of at least 1, or none, got {self.strikes}.")
        if self.suspended < 1:
            raise InputError(f"checks: suspended is a number of rounds of at least 1, got {self.suspended}.")

    def sift(self, replies: Sequence[Reply], past: Mapping[str, Any], round: int, exchange: str = "") -> Sifted:
        """What an exchange's replies come to."""
        known, radii = Reputation(past), dict(past.get("radii", {}))
        odd = {r.client: why for r in replies if (why := known.suspended(r.client, round))}
        rest = [r for r in replies if r.client not in odd]
        found = self.judge(rest)
        if self._comparable(rest):  # of others nothing is known, so nothing is forgotten either
            known.note({r.client: r.client in found for r in rest}, self, round)
        kept, shorter = self._shortened([r for r in rest if r.client not in found], radii, exchange)
        capped, lighter = self.capped(kept)
        bounded = {c: "; ".join(filter(None, (shorter.get(c), lighter.get(c)))) for c in [*shorter, *lighter]}
        return Sifted(capped, {**odd, **found}, bounded, known.past | ({"radii": radii} if radii else {}))

    def judge(self, replies: Sequence[Reply]) -> dict[ClientId, str]:
        """Whose replies stand out, and by which numbers."""
        if not self._comparable(replies):
            return {}
        changes = [moved(r.upload.delta) for r in replies]
        vectors = Vectors(changes, torch.ones(len(changes), dtype=torch.float64))
        found: dict[ClientId, str] = {}
        if self.direction:
            found.update(self._odd_directions(replies, vectors))
        if self.length:
            found.update(self._long(replies, vectors))
        return found

    def _comparable(self, replies: Sequence[Reply]) -> bool:
        """Whether there are changes, and enough of them to tell what is usual."""
        return len(replies) >= _FEWEST and all(hasattr(r.upload, "delta") for r in replies)

    def limit(self, n: int) -> float:
        """How many deviations from the median are too many among n."""
        return _limit(n, self.false_alarms / max(self.length + self.direction, 1))

    def _long(self, replies: Sequence[Reply], vectors: Vectors) -> dict[ClientId, str]:
        lengths = vectors.lengths.tolist()
        logs = [math.log(max(length, 1e-300)) for length in lengths]
        limit, usual = self.limit(len(replies)), median(lengths)
        return {
            r.client: f"stands out from its cohort: its change is {length:.3g} long, the median is {usual:.3g}; "
            f"{z:.1f} deviations, {limit:.1f} is the limit"
            for r, length, z in zip(replies, lengths, _deviations(logs), strict=True)
            if z > limit
        }

    def _odd_directions(self, replies: Sequence[Reply], vectors: Vectors) -> dict[ClientId, str]:
        n, lengths = len(replies), vectors.lengths.clamp(min=1e-300)
        cosines = (vectors.products / lengths[:, None] / lengths[None, :]).fill_diagonal_(0)
        means = (cosines.sum(dim=1) / (n - 1)).tolist()
        limit, usual = self.limit(n), median(means)
        return {
            r.client: f"stands out from its cohort: the mean cosine of its change with the others is {cosine:.2f}, the "
            f"median is {usual:.2f}; {-z:.1f} deviations, {limit:.1f} is the limit"
            for r, cosine, z in zip(replies, means, _deviations(means), strict=True)
            if -z > limit
        }

    def capped(self, replies: Sequence[Reply]) -> tuple[list[Reply], dict[ClientId, str]]:
        """The replies, none of which weighs more than ``most_share`` of all, as far as that can be; and whose weight is
        bounded."""
        if self.most_share is None or not replies:
            return list(replies), {}
        most = _cap([r.samples for r in replies], self.most_share)
        told = {
            r.client: f"counts as {most} samples instead of {r.samples}: nobody has more than {self.most_share:g}"
            for r in replies
            if r.samples > most
        }
        return [replace(r, samples=min(r.samples, most)) for r in replies], told

    def _shortened(
        self, replies: list[Reply], radii: dict[str, float], exchange: str
    ) -> tuple[list[Reply], dict[ClientId, str]]:
        """The replies, none of which is longer than the radius of the exchange, which moves on; and who was."""
        if self.shorten is None or not replies or not all(hasattr(r.upload, "delta") for r in replies):
            return replies, {}
        lengths = torch.tensor([length(moved(r.upload.delta)) for r in replies], dtype=torch.float64)
        radius = radii.get(exchange, quantile(lengths, torch.ones_like(lengths), self.shorten))
        within = float((lengths <= radius).double().mean())
        radii[exchange] = radius * math.exp(_PACE * (self.shorten - within))
        kept, told = list[Reply](), dict[ClientId, str]()
        for r, far, factor in zip(replies, lengths.tolist(), shortened(lengths, radius).tolist(), strict=True):
            if factor < 1:
                told[r.client] = f"shortened to {radius:.3g}: its change is {far:.3g} long"
                delta = {**r.upload.delta, **scale(moved(r.upload.delta), factor)}
                r = replace(r, upload=replace(r.upload, delta=delta))
            kept.append(r)
        return kept, told


class Reputation:
    """Whose replies stood out in the last rounds, and who is suspended until when."""

    def __init__(self, past: Mapping[str, Any]) -> None:
        self.strikes: dict[str, int] = dict(past.get("strikes", {}))
        self.until: dict[str, int] = dict(past.get("until", {}))
        self.counts: dict[str, int] = dict(past.get("counts", {}))  # of strikes, of those who are suspended

    @property
    def past(self) -> dict[str, Any]:
        """What a run that goes on must know."""
        return {"strikes": self.strikes, "until": self.until, "counts": self.counts}

    def suspended(self, client: ClientId, round: int) -> str | None:
        """Why a client's reply does not count in this round."""
        until = self.until.get(repr(client), 0)
        if round >= until:
            return None
        return (
            f"suspended until round {until}: its replies stood out in {self.counts.get(repr(client))} rounds in a row"
        )

    def note(self, judged: Mapping[ClientId, bool], checks: CohortChecks, round: int) -> None:
        """Remember who stood out in a round, and who did not."""
        for client, odd in judged.items():
            name = repr(client)
            before = self.strikes.pop(name, 0)
            count = before + 1 if odd else 0
            if checks.strikes is not None and count >= checks.strikes:
                self.until[name], self.counts[name] = round + 1 + checks.suspended, count
            elif count:
                self.strikes[name] = count


@cache
def _limit(n: int, alarms: float) -> float:
    """What the largest of n normal numbers exceeds, in estimated deviations from the median, so rarely."""
    few = min(n, _DRAWN)
    values = np.random.default_rng(n).normal(size=(math.ceil(40 / alarms), few))
    values -= np.median(values, axis=1, keepdims=True)
    largest = values.max(axis=1) / (_MAD * np.median(np.abs(values), axis=1))
    found = float(np.quantile(largest, 1 - alarms))
    return found * _normal_limit(n, alarms) / _normal_limit(few, alarms)


def _normal_limit(n: int, alarms: float) -> float:
    return NormalDist().inv_cdf((1 - alarms) ** (1 / n))


def _deviations(values: Sequence[float]) -> list[float]:
    """How many deviations each value is from their median."""
    middle = median(values)
    away = _MAD * median([abs(v - middle) for v in values])
    floor = 1e-3 * max(1.0, abs(middle))  # values that are all alike are no reason to leave out one that hardly differs
    return [(v - middle) / max(away, floor) for v in values]


def _cap(samples: Sequence[int], share: float) -> int:
    """The largest weight m with which nobody has more than the share: m <= share * sum min(n_i, m)."""
    low, high = min(samples), max(samples)  # all the same is as near as a cohort of fewer than 1 / share can come
    while low < high:
        middle = (low + high + 1) // 2
        fits = middle <= share * sum(min(n, middle) for n in samples)
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
