"""Which points of a space are tried, one after another."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from fedquilt.config.space import Choices, Range, Space, Sweep
from fedquilt.core.plain import JSON, Row
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.metrics.table import main

Values = Row
MOST = 10_000  # points of a grid


class Asker(Protocol):
    """Says what to try next, at most ``total`` times; ``learns``: from what was found before."""

    total: int
    learns: bool

    def ask(self, done: Sequence[tuple[Values, float | None]]) -> Values | None:
        """The next point, given all those before it and their validation accuracies (None: it failed); None: no more.

        A pure function of its argument, so that a sweep that was interrupted goes on as if it had not been.
        """
        ...


def asker(sweep: Sweep) -> Asker:
    """The search that the settings ask for."""
    if sweep.search == "grid":
        return Grid(sweep.space)
    return (Random if sweep.search == "random" else Optuna)(sweep.space, sweep.points, sweep.seed)


class Grid:
    """Every combination, the last name fastest."""

    learns = False

    def __init__(self, space: Space) -> None:
        spans = [name for name, tried in space.items() if isinstance(tried, Range)]
        if spans:
            raise InputError(
                f"sweep.space.{spans[0]} is a range, and a grid needs values. List them, or search at random "
                "(--random N, or sweep.search = 'random')."
            )
        lists = {name: tried for name, tried in space.items() if not isinstance(tried, Range)}
        size = 1
        for tried in lists.values():
            size *= len(tried)
        if size > MOST:
            raise InputError(f"The grid has {size} points, more than {MOST}. Search at random (--random N).")
        self._all = [dict(zip(lists, chosen, strict=True)) for chosen in itertools.product(*lists.values())]
        self.total = len(self._all)

    def ask(self, done: Sequence[tuple[Values, float | None]]) -> Values | None:
        """The next combination."""
        return self._all[len(done)] if len(done) < len(self._all) else None


class Random:
    """So many different points, drawn independently."""

    learns = False

    def __init__(self, space: Space, points: int, seed: int) -> None:
        self._all = list(itertools.islice(_different(space, Seed(seed)), points))
        self.total = len(self._all)

    def ask(self, done: Sequence[tuple[Values, float | None]]) -> Values | None:
        """The next of them."""
        return self._all[len(done)] if len(done) < len(self._all) else None


def _different(space: Space, seed: Seed) -> Iterator[Values]:
    """Points without end, or until nothing new comes for long."""
    seen, stale = set[str](), 0
    for number in itertools.count():
        values = {name: _draw(tried, seed.fold("sweep", number, name)) for name, tried in space.items()}
        key = json.dumps(values, sort_keys=True)
        stale = stale + 1 if key in seen else 0
        if stale > 1000:
            return
        if key not in seen:
            seen.add(key)
            yield values


def _draw(tried: Range | Choices, seed: Seed) -> JSON:
    if isinstance(tried, Range):
        return inside(tried, float(seed.numpy().random()))
    return tried[int(seed.numpy().integers(len(tried)))]


def inside(span: Range, share: float) -> int | float:
    """The number that lies a share of the way through a range; integers have the same room each."""
    edge = 0.5 if span.whole else 0.0
    low, high = span.low - edge, span.high + edge
    if span.log:
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    return min(max(round(value) if span.whole else value, span.low), span.high)


class Optuna:
    """Optuna's tree of Parzen estimators. The study is rebuilt from what is done, with a seed for each point."""

    learns = True

    def __init__(self, space: Space, points: int, seed: int) -> None:
        try:
            import optuna
        except ImportError as error:
            raise InputError(f'optuna is not installed ({error}): pip install "fedquilt[sweep]".') from error
        self._optuna, self._space, self.total, self._seed = optuna, space, points, Seed(seed)
        self._kinds = {name: self._kind(tried) for name, tried in space.items()}

    def _kind(self, tried: Range | Choices) -> Any:
        kinds = self._optuna.distributions
        if not isinstance(tried, Range):
            return kinds.CategoricalDistribution(list(range(len(tried))))  # places: values may be tables
        kind = kinds.IntDistribution if tried.whole else kinds.FloatDistribution
        return kind(tried.low, tried.high, log=tried.log)

    def ask(self, done: Sequence[tuple[Values, float | None]]) -> Values | None:
        """What the estimators think best, after some at random."""
        if len(done) >= self.total:
            return None
        optuna = self._optuna
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            sampler = optuna.samplers.TPESampler(seed=int(self._seed.fold("optuna", len(done)).numpy().integers(2**31)))
            study = optuna.create_study(
                direction="maximize" if main().higher_is_better else "minimize", sampler=sampler
            )
            states = optuna.trial.TrialState
            for values, accuracy in done:
                study.add_trial(
                    optuna.trial.create_trial(
                        params=self._places(values),
                        distributions=self._kinds,
                        value=accuracy,
                        state=states.FAIL if accuracy is None else states.COMPLETE,
                    )
                )
            asked = study.ask(self._kinds).params
        finally:
            optuna.logging.set_verbosity(before)
        return {name: self._value(name, asked[name]) for name in self._space}

    def _places(self, values: Mapping[str, JSON]) -> Row:
        return {
            name: value if isinstance(tried := self._space[name], Range) else tried.index(value)
            for name, value in values.items()
        }

    def _value(self, name: str, asked: JSON) -> JSON:
        tried = self._space[name]
        return asked if isinstance(tried, Range) else tried[asked]
