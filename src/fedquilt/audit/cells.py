"""One cell of the audit: a method with a codec and a defence, a round of it, and every attack on some clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.audit import attacks, defences
from fedquilt.audit.sight import network, sight
from fedquilt.audit.tapping import Few, overheard
from fedquilt.config.config import Config, MethodChoice
from fedquilt.config.options import made
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Divided
from fedquilt.engines.local import Local
from fedquilt.errors import ExchangeError, InputError, RoundError
from fedquilt.rounds.rounds import MemorySlots, Rounds
from fedquilt.runs.build import method_of

SAMPLE = 200  # rows of each client that tell the range of values


@dataclass(frozen=True)
class Plan:
    """What is audited.

    Args:
        methods: Names of methods; empty for the recipe's own.
        codecs: Of the changes of weights, or of HGLS's gradients; 'own' is the method's.
        defences: Combinations such as 'none' or 'batch+noise'.
        attacks: Names of ``fedquilt.audit.attacks.ATTACKS``.
        images: How many clients are attacked in each cell.
        batch: Rows of the larger batch.
        rounds: Rounds played before the one that is overheard.
        iterations, restarts: Of the search.
        clip: The largest norm of what is sent, in units of one step along a gradient of norm 1.
        noise: Standard deviation of the noise on every number, relative to ``clip``.
        seed: Everything random follows from it.
    """

    methods: tuple[str, ...] = ()
    codecs: tuple[str, ...] = ("own",)
    defences: tuple[str, ...] = ("none", "batch", "noise", "no_bias", "round")
    attacks: tuple[str, ...] = ("dlg", "idlg", "peer", "labels", "features")
    images: int = 4
    batch: int = 8
    rounds: int = 0
    iterations: int = 30
    restarts: int = 1
    clip: float = 1.0
    noise: float = 0.03
    seed: int = 0

    def __post_init__(self) -> None:
        attacks.check(self.attacks)
        for text in self.codecs:
            defences.codec_of(text)
        for text in self.defences:
            defences.parsed(text)
        if not self.defences or not self.codecs:
            raise InputError("Name at least one defence and one codec; 'none' and 'own' are such.")
        for name in ("images", "iterations", "restarts"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.batch < 2:
            raise InputError(f"batch is the larger batch: at least 2 rows, got {self.batch}.")
        if self.rounds < 0:
            raise InputError(f"rounds must not be negative, got {self.rounds}.")


@dataclass(frozen=True)
class AuditCell:
    """One place in the table."""

    config: Config
    codec: str
    defence: str

    @property
    def parts(self) -> tuple[str, ...]:
        """What the defence is made of."""
        return defences.parsed(self.defence)

    def finding(self, attack: str, client: ClientId) -> Finding:
        """An empty one."""
        return Finding(self.config.method.kind, self.codec, self.defence, attack, client, 0, {})


@dataclass(frozen=True)
class Finding:
    """What one attack found at one client; numbers by name, and pictures if there are any."""

    method: str
    codec: str
    defence: str
    attack: str
    client: ClientId
    bytes_up: int
    numbers: dict[str, float | None]
    pictures: tuple[Tensor, Tensor] | None = None  # truths and guesses, in pairs
    note: str = ""
    low: float = 0.0
    high: float = 1.0


def cells(config: Config, plan: Plan) -> list[AuditCell]:
    """Every method with every defence."""
    chosen = [config.method] if not plan.methods else [MethodChoice(kind=name) for name in plan.methods]
    return [
        AuditCell(config.with_method(method), codec, defence)
        for method in chosen
        for codec in plan.codecs
        for defence in plan.defences
    ]


def audited(
    cell: AuditCell, federation: Divided, plan: Plan, tell: Callable[[str], None] = lambda text: None
) -> list[Finding]:
    """Play the cell's round, and attack; a defence that this method cannot live with is a finding too."""
    config, seed = _settings(cell, plan), Seed(plan.seed)
    victims = tuple(federation.ids)[: plan.images]
    if plan.images > len(victims):
        raise InputError(f"--images {plan.images}: there are only {len(victims)} clients, each is attacked once.")
    method = method_of(config, federation)
    if getattr(method, "pools_data", False):
        raise InputError(f"{config.method.kind} pools all data in one place, so there is nothing to audit.")
    rows = None if "round" in cell.parts else config.train.batch_size
    few, lr = Few(federation, rows, seed.fold("rows")), _rate(config, plan)
    noise = plan.noise if "noise" in cell.parts else None
    worn = defences.dressed(method, defences.codec_of(cell.codec), plan.clip, noise, "no_bias" not in cell.parts, lr)
    try:
        state, slots = _before(cell.config, federation, plan)
        letters = overheard(worn, few, Seed(config.seed), state, plan.rounds, slots)
    except (RoundError, ExchangeError) as error:
        return [replace(cell.finding(name, victims[0]), note=f"the round failed: {error}") for name in plan.attacks]
    scene = attacks.AttackScene(
        network(method), *values_of(federation), plan.iterations, plan.restarts, config.train.batch_size
    )
    found = []
    for client in victims:
        steps = config.train.steps or config.train.epochs * -(-few.size(client) // config.train.batch_size)
        seen = sight(letters, client, worn, lr * steps)
        truth = few.site(client, plan.rounds).train.whole()
        for name in plan.attacks:
            tell(f"{config.method.kind}, {cell.defence}: {name}")
            result = attacks.ATTACKS[name](scene, seen, truth, seed.fold(name, client))
            found.append(
                replace(
                    cell.finding(name, client),
                    bytes_up=seen.bytes_up,
                    numbers=result[0],
                    pictures=result[1],
                    note=result[2],
                    low=scene.low,
                    high=scene.high,
                )
            )
    return found


def _settings(cell: AuditCell, plan: Plan) -> Config:
    """The recipe with the local work of this cell; everybody is asked."""
    everyone = cell.config.cohort.model_copy(update={"fraction": 1.0, "count": None})
    config = cell.config.model_copy(update={"cohort": everyone})
    if "round" in cell.parts:
        return config
    rows = plan.batch if "batch" in cell.parts else 1
    train = config.train.model_copy(update={"epochs": 1, "steps": 1, "batch_size": rows})
    return config.model_copy(update={"train": train})


def _rate(config: Config, plan: Plan) -> float:
    """The learning rate of the round that is overheard: the recipe is public."""
    train = config.train
    lr = float(made("optimizer", train.optimizer, "train.optimizer").lr)
    factor = 1.0 if train.schedule is None else made("schedule", train.schedule, "train.schedule")(plan.rounds)
    return lr * float(factor)


def _before(config: Config, federation: Divided, plan: Plan) -> tuple[Any, MemorySlots | None]:
    """The server's state and the clients' after the rounds of the recipe that come first."""
    if plan.rounds == 0:
        return None, None
    rounds = Rounds(method_of(config, federation), federation, Local(), Seed(config.seed))
    for _ in range(plan.rounds):
        rounds.play()
    slots = MemorySlots()
    slots.frames = {c: frame for c in federation.ids if (frame := rounds.slots.get(c)) is not None}
    return rounds.state, slots


def values_of(federation: Divided) -> tuple[float, float, Tensor]:
    """The range of the data's values, and the mean input: what one knows of such data without looking at a client."""
    low, high, total, count = float("inf"), -float("inf"), torch.zeros(()), 0
    for client in federation.ids:
        table = federation.site(client, 0).train
        x = table.rows(table.all_rows()[:SAMPLE]).x
        if not x.is_floating_point():
            raise InputError("The audit reconstructs continuous inputs; these data are token ids.")
        low, high = min(low, float(x.min())), max(high, float(x.max()))
        total, count = total + x.sum(0), count + len(x)
    return low, high, total / count
