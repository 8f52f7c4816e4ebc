"""Comparisons and sweeps from Python: objects in the place of a recipe, played by the code behind the command."""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from fedquilt.config.config import Config, load
from fedquilt.config.space import Sweep, read_set
from fedquilt.core.exchange import Method
from fedquilt.core.net import Net
from fedquilt.core.plain import JSON
from fedquilt.data import Federation, Stream
from fedquilt.errors import ConfigError, FedquiltError, InputError, did_you_mean
from fedquilt.results.ranking import FILE as SWEEP
from fedquilt.results.views import CELLS, read_json
from fedquilt.rounds.engine import Engine
from fedquilt.runs.build import check_fits
from fedquilt.runs.given import Given, RunOptions, kind_of, settings_of
from fedquilt.runs.progress import progress_of
from fedquilt.storage.files import file_name
from fedquilt.studies.compare import compared
from fedquilt.studies.player import Federations, PlannedRun
from fedquilt.studies.results import Results
from fedquilt.studies.sweep import ends, planned, swept

Data = Federation | Stream
_LONGEST = 200  # characters of a folder's name, without its seed
PARTS = ("init_server", "init_client", "exchanges", "plan")  # what every method has


def compare(
    methods: Mapping[str, Method],
    federation: Data | Callable[[int], Data],
    *,
    rounds: int,
    seeds: Sequence[int] = (0, 1, 2),
    folder: str | Path | None = None,
    engine: str | Engine = "auto",
    at_once: int | None = None,
    target: float = 0.8,
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> Results:
    """Compare methods over several seeds, as ``fedquilt compare`` does: the same runs, tests and intervals.

    Args:
        methods: By the names that tables show.
        federation: Whose data; or a function of the seed, where each seed has a division of its own.
        rounds: How many rounds each run has.
        seeds: Each method is run with each of them.
        folder: Where runs, tables, pictures and the report go. Runs found there that are finished are kept, others go
            on where they stopped; more methods, seeds or rounds may be asked for later. Without it, they are in a
            temporary folder, which goes with the results.
        engine: As for :func:`fedquilt.run`.
        at_once: How many runs are played side by side; by default, with 'auto', as many as there are cores.
        target: The accuracy that costs are counted to.
        progress: As for :func:`fedquilt.run`.
        options: Of every run, as for :func:`fedquilt.run`: ``evaluate_every``, ``patience``, ``metrics``, ...

    Example:
        >>> from fedquilt import FedAvg, FedProx
        >>> from fedquilt.testing import digits, network
        >>> methods = {"FedAvg": FedAvg(network()), "FedProx": FedProx(network(), mu=0.1)}
        >>> results = compare(methods, digits(clients=4), rounds=2, seeds=[0, 1], engine="local")
        >>> len(results.runs), sorted(row["method"] for row in results.rows)
        (4, ['FedAvg', 'FedProx'])
    """
    _check_methods(methods)
    arguments = {"rounds": rounds, "seeds": seeds, "target": target, "at_once": at_once, **options}
    with _place(folder) as (top, kept):
        config = settings_of(engine, top, **arguments)
        federations = _federations(federation, config.compare.seeds)
        todo = [
            _planned(label, config, seed, top / f"{file_name(label)}-seed{seed}", _given(method, options, kept))
            for seed in config.compare.seeds
            for label, method in methods.items()
        ]
        problems = _unfit(methods, federations) + _untested(federations)
        _raise(problems + _other_study(top, CELLS, SWEEP, todo) + _other_runs(todo, federations))
        used = engine if not isinstance(engine, str) else None
        with progress_of(progress) as shown:
            compared(config, top, todo, federations, shown.parts(rounds, len(todo)), used, kept)
        return Results(top, passing=not kept)


def sweep(
    make: Callable[..., Method],
    space: Mapping[str, Any],
    federation: Data | Callable[[int], Data],
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    folder: str | Path | None = None,
    engine: str | Engine = "auto",
    at_once: int | None = None,
    search: str = "grid",
    points: int = 20,
    search_seed: int = 0,
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> Results:
    """Try many settings of a method and choose one on validation samples, as ``fedquilt sweep`` does.

    Args:
        make: Makes the method of a point; its arguments are the names in ``space``.
        space: What to try of each argument: a list of values, or a range in the words of ``--set``: ``"0.1..1.0"``,
            ``"log:0.001..1"``.
        federation, rounds, seeds, folder, engine, at_once, progress, options: As for :func:`fedquilt.compare`.
        search: 'grid' (every combination), 'random' or 'optuna'.
        points: How many of the last two.
        search_seed: Draws them.

    Example:
        >>> from fedquilt import FedProx
        >>> from fedquilt.testing import digits, network
        >>> results = sweep(
        ...     lambda mu: FedProx(network(), mu=mu), {"mu": [0.01, 1.0]}, digits(clients=4), rounds=2, engine="local"
        ... )
        >>> [row["values"] for row in results.rows]
        [{'mu': 0.01}, {'mu': 1.0}]
    """
    plan = _plan(make, space, {"search": search, "points": points, "seed": search_seed})
    arguments = {"rounds": rounds, "seeds": seeds, "at_once": at_once, **options}
    with _place(folder) as (top, kept):
        config = settings_of(engine, top, **arguments)
        config = config.model_copy(update={"sweep": plan.model_copy(update={"seeds": config.compare.seeds})})
        federations = _federations(federation, config.compare.seeds)
        made = {str(values): make(**values) for values in ends(plan.space)}
        _check_methods(made)
        _raise(_unfit(made, federations) + _invalid(federations) + _other_study(top, SWEEP, CELLS, ()))

        def settings(values: Mapping[str, JSON]) -> tuple[Config, Given]:
            method = make(**values)
            return _called(config, method), _given(method, options, kept)

        def fresh(cells: Sequence[PlannedRun]) -> None:
            _raise(_other_runs(cells, federations))

        used = engine if not isinstance(engine, str) else None
        with progress_of(progress) as shown:
            swept(config, top, settings, federations, shown.parts(rounds, planned(config)), used, fresh, kept)
        return Results(top, passing=not kept)


def _planned(label: str, config: Config, seed: int, folder: Path, given: Given) -> PlannedRun:
    return PlannedRun(label, _called(config, given.method).model_copy(update={"seed": seed}), folder, label, given)


def _called(config: Config, method: Method) -> Config:
    """The settings, with what people call a method."""
    return config.model_copy(update={"method": config.method.model_copy(update={"kind": kind_of(method)})})


def _given(method: Method, options: RunOptions, kept: bool) -> Given:
    metrics, checks = options.get("metrics", ()), options.get("checks")
    return Given(method, checks=checks, attackers=options.get("attackers"), metrics=metrics, kept=kept)


@contextmanager
def _place(folder: str | Path | None) -> Iterator[tuple[Path, bool]]:
    """The folder of a study, and whether it is kept; without one, a temporary one."""
    if folder is not None:
        yield Path(folder), True
        return
    place = Path(tempfile.mkdtemp(prefix="fedquilt-"))
    try:
        yield place, False
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


# What cannot work is said before anything is played, all at once.


def _raise(problems: Sequence[str], where: str = "arguments") -> None:
    if problems:
        raise ConfigError(list(problems), where)


def _check_methods(methods: object) -> None:
    if not isinstance(methods, Mapping):
        raise InputError(
            "methods should be a dict from names to methods, such as {'FedAvg': FedAvg(net), 'Ditto': Ditto(net)}; got "
            f"{type(methods).__name__}."
        )
    if not methods:
        raise InputError("There is no method to compare. Give a dict such as {'FedAvg': FedAvg(net)}.")
    _raise([problem for label, method in methods.items() for problem in _wrong(label, method)], "methods")


def _wrong(label: object, method: object) -> list[str]:
    """What is wrong with one of them."""
    if not isinstance(label, str) or not label.strip() or len(label) > 100 or not label.isprintable():
        return [f"{label!r}: a name should be a text of one line, of 1 to 100 characters"]
    if len(file_name(label)) > _LONGEST:
        return [f"{label!r}: this name is too long for a folder's; give one with fewer letters beyond ASCII"]
    if isinstance(method, type):
        return [f"{label!r} is the class {method.__name__}; give an object, such as {method.__name__}(net)"]
    if isinstance(method, Net):
        return [f"{label!r} is a Net; give a method that trains it, such as FedAvg(net)"]
    lacking = [part for part in PARTS if not hasattr(method, part)]
    if lacking:
        return [f"{label!r} is a {type(method).__name__}, which is no method: it has no {', '.join(lacking)}"]
    return []


def _federations(federation: Data | Callable[[int], Data], seeds: Sequence[int]) -> Federations:
    """The federation of each seed."""
    if isinstance(federation, Data):
        return dict.fromkeys(seeds, federation)
    if isinstance(federation, type) or not callable(federation):
        raise InputError(
            "federation should be a Federation, a Stream, or a function of the seed that makes one; got "
            f"{federation if isinstance(federation, type) else type(federation).__name__}."
        )
    found = {seed: federation(seed) for seed in seeds}
    odd = next((made for made in found.values() if not isinstance(made, Data)), None)
    if odd is not None or None in found.values():
        raise InputError(f"The function of the seed should return a Federation, got {type(odd).__name__}.")
    return found


def _unfit(methods: Mapping[str, Method], federations: Federations) -> list[str]:
    """Methods whose network cannot take these rows, or has too few outputs."""
    problems = []
    for data in dict.fromkeys(federations.values()):
        for label, method in methods.items():
            try:
                check_fits(method, data, getattr(method, "batch_size", 32))
            except (FedquiltError, RuntimeError, ValueError, TypeError) as error:
                problems.append(f"{label!r} does not fit the data: {str(error).splitlines()[0]}")
    return list(dict.fromkeys(problems))


def _untested(federations: Federations) -> list[str]:
    bare = [
        s for s, data in federations.items() if not _has(data, "test") and getattr(data, "global_test", None) is None
    ]
    return (
        [f"federation: nobody has test samples to compare methods on (seed {bare[0]}); give test=0.2"] if bare else []
    )


def _invalid(federations: Federations) -> list[str]:
    bare = [s for s, d in federations.items() if not _has(d, "valid") and getattr(d, "server_valid", None) is None]
    return [f"federation: a sweep selects on validation samples, and there are none (seed {bare[0]})"] if bare else []


def _has(data: Data, split: str) -> bool:
    return any(data.evaluation(client, split) is not None for client in data.evaluated)


def _other_study(top: Path, own: str, other: str, todo: Iterable[PlannedRun]) -> list[str]:
    """Why a folder is not for this study."""
    if (top / "config.toml").exists():
        return [f"folder: '{top}' is the folder of a run; give another one"]
    if (top / other).exists() and (own, other) == (CELLS, SWEEP):
        return [f"folder: '{top}' holds a sweep; give another one"]
    if not (top / own).exists():
        what = "comparison" if own == CELLS else "sweep"
        return [f"folder: '{top}' is not empty, and holds no {what}; give a new one"] if any(top.glob("*")) else []
    planned = {cell["folder"] for cell in read_json(top / CELLS).get("cells", [])}
    if todo and planned and planned.isdisjoint(cell.folder.name for cell in todo):
        return [f"folder: '{top}' holds another comparison, none of whose runs are asked for; give another one"]
    return []


def _other_runs(cells: Iterable[PlannedRun], federations: Federations) -> list[str]:
    """Runs in the folder that go by the names of these, and are others."""
    problems = []
    for cell in cells:
        problem = _other_run(cell, federations[cell.config.seed])
        problems += [f"{cell.label!r}, seed {cell.config.seed}: {problem}"] if problem else []
    return problems


def _other_run(cell: PlannedRun, data: Data) -> str | None:
    given, folder = cell.given, cell.folder
    if given is None or not given.kept:
        return None
    try:
        asked = given.told(cell.config, data)
    except InputError as error:
        return str(error)
    if not (folder / "config.toml").is_file():
        return None
    kept, done = load(folder / "config.toml"), read_json(folder / "result.json").get("rounds", 0)
    if kept.script is None or asked.script is None or kept.identity() != asked.identity():
        return f"'{folder}' holds a run of another method or schedule; give another folder, or delete that one"
    if kept.script.data != asked.script.data:
        return f"'{folder}' holds a run on other data; give another folder, or delete that one"
    if done > cell.config.rounds:
        return f"'{folder}' holds {done} rounds, and {cell.config.rounds} are asked for; give another folder"
    return None


def _plan(make: Callable[..., Method], space: object, how: Mapping[str, Any]) -> Sweep:
    """The checked plan of a sweep."""
    if not callable(make):
        raise InputError(f"make should be a function that makes a method, got {type(make).__name__}.")
    if not isinstance(space, Mapping) or not space:
        raise InputError(f"space should be a dict of what to try, such as {{'mu': [0.01, 0.1, 1.0]}}, got {space!r}.")
    try:
        tried = {n: read_set(f"{n}={v}")[1] if isinstance(v, str) else _listed(v) for n, v in space.items()}
        plan = Sweep.model_validate({"space": tried, **how})
    except ValueError as error:
        problems = getattr(error, "errors", None)
        raise ConfigError(
            [p["msg"].removeprefix("Value error, ") for p in problems()] if problems else [str(error)], "sweep"
        ) from error
    except TypeError as error:
        raise InputError(
            f"Values in space should be numbers, texts or lists of them ({error}). Give names, and turn them into "
            "objects in your function."
        ) from error
    _check_names(make, space)
    return plan


def _listed(values: object) -> object:
    return list(values) if isinstance(values, tuple | range) else values


def _check_names(make: Callable[..., Method], names: Iterable[str]) -> None:
    """The function takes these arguments, and needs no others."""
    taken = inspect.signature(make).parameters.values()
    known = [p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in taken)
    odd = [f"{n}: your function takes no such argument{did_you_mean(n, known)}" for n in names if n not in known]
    needed = [p.name for p in taken if p.default is p.empty and p.name in known and p.name not in names]
    _raise(
        ([] if open_ended else odd) + [f"{n}: your function needs it, and space does not have it" for n in needed],
        "space",
    )
