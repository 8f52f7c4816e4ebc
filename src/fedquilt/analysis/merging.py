"""Merging saved models, one tensor of each at a time.

The greedy soup of saved models, scored on a recipe's validation samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedquilt.config.config import load
from fedquilt.core.params import Params
from fedquilt.core.plain import JSON, Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Source, Table
from fedquilt.errors import InputError
from fedquilt.metrics.classify import classify
from fedquilt.models.weights.files import fingerprint
from fedquilt.models.weights.streamed import CheckpointWriter, StoredModel, compare, finite
from fedquilt.models.weights.torch_files import is_torch_file
from fedquilt.pieces.merging.informed import Fisher, RegMean, Slerp, greedy_soup
from fedquilt.pieces.merging.rule import Difference, MergeReport, MergeRule, Work, check_weights, merged, weights_of
from fedquilt.pieces.merging.stitch import Stitch
from fedquilt.pieces.merging.ties import Dare, Soup, TaskArithmetic, Ties
from fedquilt.rounds.client import one_thread
from fedquilt.runs.build import federation_of, method_of
from fedquilt.storage.files import storage, to_json, write_atomic


def greedy(recipe: Path | None, models: Sequence[StoredModel]) -> tuple[list[int], float]:
    """Which models go into the soup, and its accuracy on the server's validation samples, or on all clients'
    together."""
    if recipe is None:
        raise InputError("A greedy soup is evaluated on validation samples: give a recipe with --recipe.")
    config = load(recipe)
    federation = federation_of(config)
    tables = _validation_tables(federation)
    if not tables:
        raise InputError(
            f"The recipe '{recipe}' has no validation samples; set, for example, data.valid = 0.1 or "
            "data.common_valid = 0.1."
        )
    method = method_of(config, federation)
    net = method.net  # type: ignore[attr-defined]
    lacking = [n for n in net.names if n not in models[0]]
    if lacking:
        raise InputError(f"The models are not those of '{recipe}': its network has {', '.join(lacking[:3])}.")

    def score(params: Params) -> float:
        scores = [classify(method.predict, params, table) for table in tables]
        return float(sum(s.accuracy * s.rows for s in scores) / sum(s.rows for s in scores))

    with one_thread():
        _, chosen, best = greedy_soup([net.taken(m) for m in models], score)
    return chosen, best


def _validation_tables(federation: Source) -> list[Table]:
    """The server's validation samples, or those of all clients."""
    common: Table | None = getattr(federation, "server_valid", None)
    held = (federation.evaluation(c, "valid", 0) for c in federation.evaluated)
    return [common] if common is not None else [t for t in held if t is not None]


RULES = {
    "stitch": ("keep", "per", "count", "conflicts"),
    "task_arithmetic": ("scale",),
    "ties": ("keep", "scale", "per"),
    "dare": ("drop",),
    "dare_ties": ("drop", "keep", "scale", "per"),
    "soup": (),
    "greedy_soup": ("recipe",),
    "slerp": ("t",),
    "fisher": ("statistics",),
    "regmean": ("statistics", "shrink"),
}
ALIASES = {"masked_mean": "stitch", "harmonic": "stitch", "mean": "soup", "uniform_soup": "soup"}
WITHOUT_BASE = ("soup", "greedy_soup", "slerp", "fisher", "regmean")  # the same whatever models began from
_MAKERS: dict[str, Callable[..., MergeRule]] = {
    "stitch": Stitch,
    "task_arithmetic": TaskArithmetic,
    "ties": Ties,
    "dare": Dare,
    "soup": Soup,
    "slerp": Slerp,
}
Step = Callable[[str, int], None]


@dataclass(frozen=True)
class Request:
    """What is to be merged, how, and where to.

    Args:
        models: Safetensors files, files of torch.save (.pt, .pth, .bin), or folders as transformers writes them.
        out: A file, or a folder if the models are folders.
        rule: One of ``RULES``.
        base: What the models began from; needed unless the rule does not care.
        options: Of the rule.
        weights: How much each model counts; all the same by default.
        seed: For rules that draw.
        force: Replace what is at ``out``.
    """

    models: Sequence[Path]
    out: Path
    rule: str = "stitch"
    base: Path | None = None
    options: Mapping[str, JSON] = field(default_factory=dict)
    weights: Sequence[float] | None = None
    seed: int = 0
    force: bool = False


def known_rule(name: str) -> str:
    """The rule of a name or of another name for it."""
    rule = ALIASES.get(name, name)
    if rule not in RULES:
        raise InputError(f"unknown rule {name!r} (known: {', '.join([*RULES, *ALIASES])})")
    return rule


def merge_files(request: Request, step: Step | None = None) -> Row:
    """Merge, write the model and its card; tells what happened. ``step`` hears of every tensor and its numbers."""
    rule, began = known_rule(request.rule), time.perf_counter()
    _check(request, rule)
    with ExitStack() as held:

        def opened(path: Path) -> StoredModel:
            return held.enter_context(closing(StoredModel(path)))

        base, *models = map(opened, (request.base or request.models[0], *request.models))
        _check_alike(base, models)
        statistics = list(map(opened, request.options.get("statistics", ())))
        report = _written(request, _rule(rule, request.options, statistics), base, models, step)
        extra = report.pop("extra", {})
        facts = {
            "out": str(request.out),
            "rule": rule,
            "options": _plain(request.options),
            **extra,
            **report,
            "base": None if request.base is None else _source(request.base),
            "models": [_source(p) for p in request.models],
            "weights": list(check_weights(request.weights, len(models))),
            "seed": request.seed,
            "tensors": len(base),
            "seconds": round(time.perf_counter() - began, 3),
        }
        _card(request, facts)
        return facts


def _check_alike(base: StoredModel, models: Sequence[StoredModel]) -> None:
    """Raise unless the models have the tensors of the base."""
    if not len(base):
        raise InputError(f"'{base.path}' contains no tensors: there is nothing to merge.")
    problems = [p for m in models for p in compare(base, m)]
    if problems:
        listed = "\n".join(f"  - {p}" for p in problems[:20])
        raise InputError(f"These models cannot be merged, {len(problems)} differences:\n{listed}")


def _check(request: Request, rule: str) -> None:
    if not request.models:
        raise InputError("There is nothing to merge: give at least one model.")
    if request.base is None and rule not in WITHOUT_BASE:
        raise InputError(f"The rule {rule} merges weight changes: give the common base model with --base.")
    if is_torch_file(request.out):
        raise InputError(
            f"--out {request.out}: merged models are written as safetensors. Use a file name that ends in .safetensors."
        )
    if request.out.exists() and not request.force:
        raise InputError(f"'{request.out}' exists. Give another name, or --force to replace it.")
    if request.out.resolve() in [p.resolve() for p in (*request.models, request.base) if p is not None]:
        raise InputError(f"'{request.out}' is one of the models that are read. Give another name.")
    _check_options(rule, request.options)


def _check_options(rule: str, given: Iterable[str]) -> None:
    foreign = [name for name in given if name not in RULES[rule]]
    if foreign:
        takes = ", ".join(f"--{name}" for name in RULES[rule]) or "no options"
        raise InputError(f"The rule {rule} takes {takes}; got --{foreign[0]}.")


def _written(
    request: Request, rule: MergeRule, base: StoredModel, models: Sequence[StoredModel], step: Step | None
) -> Row:
    work = Work(
        base,
        [Difference(m, base) for m in models],
        weights_of(base.dtypes),
        check_weights(request.weights, len(models)),
        Seed(request.seed),
        MergeReport(),
    )
    extra: Row = {}
    if known_rule(request.rule) == "greedy_soup":
        chosen, score = greedy(request.options.get("recipe"), models)
        extra = {"chosen": [str(request.models[i]) for i in chosen], "valid_accuracy": score}
        work = Work(base, [work.deltas[i] for i in chosen], work.names, [1.0] * len(chosen), work.seed, work.report)
    with storage(request.out.parent):
        writer = CheckpointWriter(base, request.out)
        try:
            _write_all(writer, rule, work, base, step)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
    found = work.report.summary()
    if "chosen" in extra:  # of each model, also of those left out
        by_model = dict(zip(chosen, found["density"], strict=True))
        found["density"] = [by_model.get(i, 0.0) for i in range(len(models))]
    return {**found, "extra": extra}


def _write_all(writer: CheckpointWriter, rule: MergeRule, work: Work, base: StoredModel, step: Step | None) -> None:
    ordered = _InOrder(base, writer.names)
    for name, tensor in merged(rule, Work(ordered, work.deltas, work.names, work.weights, work.seed, work.report)):
        if not finite(tensor):
            raise InputError(f"'{name}' would be non-finite after the merge: are scale or weights too large?")
        writer.add(name, tensor)
        if step is not None:
            step(name, tensor.numel())


class _InOrder(Mapping[str, Tensor]):
    """A stored model whose names come in the order in which they are written."""

    def __init__(self, model: StoredModel, names: Sequence[str]) -> None:
        self._model, self._names = model, names

    def __getitem__(self, name: str) -> Tensor:
        return self._model[name]

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _rule(rule: str, options: Mapping[str, JSON], statistics: Sequence[StoredModel]) -> MergeRule:
    given = {k: v for k, v in options.items() if k not in ("statistics", "recipe")}
    if rule in ("fisher", "regmean"):
        return Fisher(statistics) if rule == "fisher" else RegMean(statistics, **given)
    if rule == "dare_ties":
        drop = {"drop": given.pop("drop")} if "drop" in given else {}
        return Dare(**drop, then=Ties(**given))
    return _MAKERS["soup" if rule == "greedy_soup" else rule](**given)


def _source(path: Path) -> dict[str, str]:
    return {"path": str(path), "sha256": fingerprint(path)}


def _plain(options: Mapping[str, JSON]) -> Row:
    return {
        k: [str(p) for p in v] if k == "statistics" else str(v) if isinstance(v, Path) else v
        for k, v in options.items()
    }


def part_of(facts: Mapping[str, JSON], place: int) -> str:
    """What a model had to say in a merge, in words; without a base there are no changes to speak of."""
    if "chosen" in facts and facts["models"][place]["path"] not in facts["chosen"]:
        return "left out"
    return "" if facts["base"] is None else f"{100 * facts['density'][place]:.2f} % of its changes"


def card_of(out: Path) -> Path:
    """Where the card of a merged model is."""
    return out / "merge_card.md" if out.is_dir() else out.with_name(out.stem + ".card.md")


def _card(request: Request, facts: Mapping[str, JSON]) -> None:
    """A page about the merge, and the same as JSON."""
    lines = [
        f"# {request.out.name}",
        "",
        f"Merged from {len(request.models)} models by the rule `{facts['rule']}`.",
        "",
    ]
    lines += ["| | |", "|---|---|"]
    settings = ", ".join(f"{k} = {v}" for k, v in facts["options"].items()) or "defaults"
    lines += [f"| settings | {settings} |", f"| seed | {facts['seed']} |"]
    if facts["base"] is not None:
        lines.append(f"| base | `{facts['base']['path']}` sha256 {facts['base']['sha256'][:16]} |")
    for place, model in enumerate(facts["models"]):
        part = part_of(facts, place)
        told = f", {part}" if part else ""
        lines.append(f"| model {place + 1} | `{model['path']}` sha256 {model['sha256'][:16]}{told} |")
    lines.append(f"| weights merged | {facts['numbers']:,} |")
    if facts["base"] is not None:
        lines += [
            f"| changed by any model | {100 * facts['touched']:.2f} % |",
            f"| changed by two or more | {100 * facts['shared']:.2f} % |",
            f"| with changes of both signs | {100 * facts['conflicts']:.2f} % |",
        ]
    card = card_of(request.out)
    write_atomic(card, ("\n".join(lines) + "\n").encode())
    write_atomic(card.with_suffix(".json"), to_json(facts, indent=1).encode())
