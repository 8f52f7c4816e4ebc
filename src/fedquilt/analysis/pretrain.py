"""Central pretraining of a masked autoencoder, on rows that no client has: ``fedquilt pretrain-mae``."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from fedquilt.analysis.pretrain_card import Facts, write_card
from fedquilt.config.config import Config
from fedquilt.config.data import for_pretraining
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Table
from fedquilt.data import Federation
from fedquilt.errors import FrameError, InputError
from fedquilt.models.masked.autoencoders import SIZES, own_autoencoder
from fedquilt.pieces.optimizers import AdamW
from fedquilt.records.record import pack, record, unpack
from fedquilt.rounds.client import one_thread
from fedquilt.runs.build import row_shape
from fedquilt.storage.files import to_json, write_atomic

STATE = "unfinished.safetensors"
SECONDS = 30.0  # at most so much work is lost when it is interrupted
VALID = 0.05
Step = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Pretraining:
    """How the autoencoder is trained: AdamW, the rate growing over the warm-up and then falling along half a cosine.

    Args:
        epochs: Passes over the rows set aside.
        batch_size: Images in a step.
        lr: The highest learning rate.
        weight_decay: Of AdamW.
        warm_up: The share of the steps in which the rate grows.
        seed: For first weights, order of rows, and masks.
    """

    epochs: int = 20
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.05
    warm_up: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.warm_up < 1:
            raise InputError(f"warm_up must be a share in [0, 1), got {self.warm_up}.")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm = int(self.warm_up * steps)
        if step < warm:
            return self.lr * (step + 1) / warm
        return self.lr * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2


@record(name="fedquilt.runs.pretrain:State")
class State:
    """Everything that is needed to go on: weights, the optimiser's memory, and what was measured."""

    identity: str
    params: Params
    memory: tuple[tuple[Tensor, ...], ...]
    done: int
    losses: tuple[float, ...]
    curve: tuple[tuple[float, float], ...]
    seconds: float


def pretrain(config: Config, out: Path, how: Pretraining, fresh: bool = False, step: Step | None = None) -> Facts:
    """Train, or go on with what was interrupted, and save weights, settings and card in the folder ``out``.

    The result depends on the settings, the data and the seed alone, however often it was interrupted. ``step`` hears
    after every step: how many are done, of how many, and the last loss.
    """
    if config.model.kind != "mae":
        raise InputError(f"Pretraining is for model.kind = 'mae', the recipe has {config.model.kind!r}.")
    data = for_pretraining(config.data, VALID)
    net = _net(config, data)
    settings: Row = net.trait("settings")
    print_of = {"model": settings, "data": data.fingerprint(), "how": asdict(how)}
    identity = hashlib.sha256(to_json(print_of).encode()).hexdigest()
    begun = None if fresh else _begun(out, identity)
    if isinstance(begun, Facts):
        return begun
    site = data.site(data.ids[0], 0)
    run = _Run(net, site.train, site.valid, how, out, begun or _first(net, identity, how))
    with one_thread():
        state = run.play(step)
    facts = Facts(
        identity,
        settings,
        _said(config),
        len(site.train),
        0 if site.valid is None else len(site.valid),
        asdict(how),
        state.curve,
        state.seconds,
    )
    write_atomic(out / "model.safetensors", save({n: t.contiguous() for n, t in state.params.items()}))
    write_atomic(out / "config.json", to_json({"kind": "mae", "model": settings}, indent=2).encode())
    saved = write_card(out, facts, net, state.params, site.valid or site.train)
    (out / STATE).unlink(missing_ok=True)
    return saved


@dataclass(frozen=True)
class _Run:
    net: Net
    train: Table
    valid: Table | None
    how: Pretraining
    out: Path
    state: State

    def play(self, told: Step | None) -> State:
        """All steps that are left."""
        how, each = self.how, math.ceil(len(self.train) / self.how.batch_size)
        total, seed = how.epochs * each, Seed(how.seed)
        rule = AdamW(lr=how.lr, betas=(0.9, 0.95), weight_decay=how.weight_decay)
        params = self.net.own(self.state.params)
        weights = [params[n].requires_grad_() for n in self.net.trainable]
        bare = [w.detach() for w in weights]
        memory = tuple(list(kind) for kind in self.state.memory) or rule.init(bare)
        done, losses, curve = self.state.done, list(self.state.losses), list(self.state.curve)
        began = saved = time.monotonic()

        def kept() -> State:
            held = {n: t.detach() for n, t in params.items()}
            spent = self.state.seconds + time.monotonic() - began
            return State(self.state.identity, held, tuple(map(tuple, memory)), done, tuple(losses), tuple(curve), spent)

        while done < total:
            batches = self.train.batches(how.batch_size, 1, seed.fold("batches", done // each))
            for batch in islice(batches, done % each, None):
                noise = torch.rand(len(batch), self._patches, generator=seed.fold("mask", done).torch())
                loss = self.net.ask(params, "forward", batch.x, noise, train=True).loss.mean()
                grads = list(torch.autograd.grad(loss, weights))
                rule.step(bare, grads, memory, how.rate(done, total), done + 1)
                done += 1
                losses.append(float(loss.detach()))
                if not math.isfinite(losses[-1]):
                    raise InputError(f"The loss of step {done} is {losses[-1]}. Lower the learning rate, now {how.lr}.")
                if told is not None:
                    told(done, total, losses[-1])
                if time.monotonic() - saved > SECONDS:
                    self._save(kept())
                    saved = time.monotonic()
            curve.append((sum(losses) / len(losses), self._score(params)))
            losses.clear()
        return kept()

    @property
    def _patches(self) -> int:
        return int(self.net.trait("patches"))

    def _save(self, state: State) -> None:
        write_atomic(self.out / STATE, pack(state))

    @torch.no_grad()
    def _score(self, params: Params) -> float:
        """The mean loss over the validation samples, with the same masks every time."""
        table = self.valid if self.valid is not None and len(self.valid) else None
        if table is None:
            return math.nan
        total, draw = 0.0, Seed(self.how.seed).fold("validation").torch()
        for batch in table.blocks(500):
            noise = torch.rand(len(batch), self._patches, generator=draw)
            total += float(self.net.ask(params, "forward", batch.x, noise).loss.double().sum())
        return total / len(table)


def _net(config: Config, data: Federation) -> Net:
    channels, size = _image(row_shape(data))
    options = config.model.options
    sizes = {n: v for n, v in options.items() if n in (*SIZES, "mask_ratio")}
    return Net(own_autoencoder(channels, size, adapter="none", **sizes))


def _image(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 3 or shape[1] != shape[2]:
        raise InputError(f"A masked autoencoder takes square images, rows of shape (C, H, H), the data have {shape}.")
    return shape[0], shape[1]


def _first(net: Net, identity: str, how: Pretraining) -> State:
    return State(identity, net.init(Seed(how.seed).fold("pretraining")), (), 0, (), (), 0.0)


def _begun(out: Path, identity: str) -> State | Facts | None:
    """What is in the folder: a finished autoencoder of these settings, one to go on with, or nothing."""
    found = Facts.read(out) or _unfinished(out)
    if found is not None and found.identity != identity:
        what = "an autoencoder" if isinstance(found, Facts) else "an unfinished autoencoder"
        raise InputError(
            f"'{out}' holds {what} of other settings, data or seed. Give another folder, or --fresh to replace it."
        )
    return found


def _unfinished(out: Path) -> State | None:
    """A pretraining to go on with, if the folder holds one."""
    if not (out / STATE).exists():
        if (out / "model.safetensors").exists():
            raise InputError(f"'{out}' holds other weights already. Give another folder, or --fresh to replace them.")
        return None
    try:
        found = unpack((out / STATE).read_bytes())
    except FrameError as error:
        raise InputError(f"'{out / STATE}' is damaged ({error}). Start from scratch with --fresh.") from error
    return found if isinstance(found, State) else None


def _said(config: Config) -> Row:
    kept = {"source", "path", "label", "size", "mean", "std", "pretraining", "seed", "transforms"}
    found = config.data.model_dump(mode="json", include=kept, exclude_none=True)
    return {**found, "path": Path(found["path"]).name} if "path" in found else found
