"""One run in PFLlib's order: score, then train, round after round.

Its less than ideal conditions too: clients that join at random, uploads that get lost, slow clients.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.torch

from fedquilt.analysis.newcomers import evaluate_newcomers
from fedquilt.audit import attacks
from fedquilt.audit.cells import values_of
from fedquilt.audit.sight import network, sight
from fedquilt.audit.tapping import overheard
from fedquilt.compat.algorithms import method_settings, model_settings
from fedquilt.compat.results import Traffic
from fedquilt.compat.scores import PFLlibScores, evaluation, grade
from fedquilt.config.config import Config, parse
from fedquilt.core.exchange import Context, Exchange, Method, Reply, at_random, unmoved
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import InTurn, Job, Train
from fedquilt.data import Federation
from fedquilt.engines.auto import Auto
from fedquilt.errors import InputError
from fedquilt.methods.on_base import OnBase
from fedquilt.rounds.engine import Engine
from fedquilt.rounds.rounds import MemorySlots, Rounds
from fedquilt.runs.build import check_fits, method_of
from fedquilt.storage.files import write_atomic

ATTACKED = 4  # clients of an attack
Say = Callable[[str], None]


def settings(asked: argparse.Namespace, shape: tuple[int, ...], seed: int) -> Config:
    """The arguments as a recipe."""
    train: dict[str, Any] = {
        "epochs": asked.local_epochs,
        "batch_size": asked.batch_size,
        "optimizer": {"kind": "sgd", "lr": asked.local_learning_rate},
    }
    if asked.learning_rate_decay:
        train["schedule"] = {"kind": "exponential", "gamma": asked.learning_rate_decay_gamma}
    return parse(
        {
            "seed": seed,
            "rounds": max(1, asked.global_rounds),
            "model": model_settings(asked, shape),
            "method": {**method_settings(asked), "shared_start": asked.shared_start},
            "train": train,
            "cohort": {"count": int(asked.num_clients * asked.join_ratio)},
        },
        "arguments",
    )


def method_for(asked: argparse.Namespace, config: Config, federation: Federation) -> Method:
    """The method, in the conditions asked for."""
    method, seed = method_of(config, federation), Seed(config.seed)
    check_fits(method, federation, asked.batch_size)
    late = some(asked.send_slow_rate, federation.ids, seed.fold("late"))
    slow = some(asked.train_slow_rate, federation.ids, seed.fold("slow"))
    if not (asked.random_join_ratio or asked.client_drop_rate or late or slow):
        return method
    worse = Practical(
        base=method,
        join=config.cohort.count if asked.random_join_ratio else None,
        drop_rate=asked.client_drop_rate,
        slow=slow,
        late=late,
        patience=asked.time_threthold,
        seed=config.seed,
    )
    worse.exchanges()  # a wish that this method cannot have is refused now
    return worse


def check_newcomers(asked: argparse.Namespace, method: Method) -> None:
    """Newcomers need a model to be given, or some training."""
    whole = method.global_model(method.init_server(Seed(0).fold("server")))
    if asked.num_new_clients and not asked.fine_tuning_epoch_new and whole is None:
        raise InputError(f"-nnc: {asked.algorithm} has no global model to give newcomers. Add -ften 1, say.")


def played(
    asked: argparse.Namespace, config: Config, method: Method, federation: Federation, engine: Engine, say: Say
) -> tuple[list[PFLlibScores], list[Traffic], Rounds]:
    """The evaluations before rounds 0, g, 2g, ... T for the gap g, what each round sent, and the run after the last."""
    rounds = Rounds(method, federation, engine, Seed(config.seed), score=grade)
    found: list[PFLlibScores] = []
    sent: list[Traffic] = []
    warning: str | None = None
    for number in range(asked.global_rounds + 1):
        began = time.perf_counter()
        if number % asked.eval_gap == 0:
            found.append(evaluation(rounds.evaluate(federation.evaluated, with_global=False)))
            say(f"round {number}: {found[-1].words}")
        if asked.dlg_eval and number % asked.dlg_gap == 0:
            say(attacked(asked, config, method, federation, rounds))
        if number == asked.global_rounds or (asked.auto_break and _old(found, asked.top_cnt)):
            break
        log = rounds.play(scored=(number + 1) % asked.eval_gap == 0)
        sent.append(Traffic(log.bytes_down, log.bytes_up, log.raw_down, log.raw_up))
        say(f"round {number}: {sent[-1].words}")
        if warning is None and (warning := told_by(method, rounds.state)) is not None:
            say(f"round {number}: {warning}")
        for lost in log.quarantined:
            say(f"round {number}: client {lost.client!r} left out: {lost.reason}")
        if isinstance(engine, Auto):
            engine.expect(time.perf_counter() - began, asked.global_rounds - number)
    return found, sent, rounds


def told_by(method: Method, state: object) -> str | None:
    """What a method has to say about its state, if anything."""
    found: str | None = method.warning(state) if hasattr(method, "warning") else None
    return found


def _old(found: list[PFLlibScores], top: int) -> bool:
    return len(found) - int(np.argmax([e.accuracy for e in found])) > top


def attacked(asked: argparse.Namespace, config: Config, method: Method, federation: Federation, rounds: Rounds) -> str:
    """DLG on what some clients are about to send: the coming round is played once more, with somebody listening."""
    slots = MemorySlots()
    slots.frames = {c: frame for c in federation.ids if (frame := rounds.slots.get(c)) is not None}
    letters = overheard(method, federation, rounds.seed, rounds.state, rounds.done, slots)
    lr = asked.local_learning_rate
    if asked.learning_rate_decay:
        lr *= asked.learning_rate_decay_gamma**rounds.done
    images = asked.batch_num_per_client * asked.batch_size
    scene = attacks.AttackScene(network(method), *values_of(federation), iterations=10, restarts=1, batch_size=images)
    found: list[tuple[float, float]] = []
    notes: dict[str, None] = {}
    for client in list(dict.fromkeys(letter.client for letter in letters))[:ATTACKED]:
        site = federation.site(client, rounds.done)
        steps = asked.local_epochs * -(-len(site.train) // asked.batch_size)
        seen = sight(letters, client, method, lr * steps)
        numbers, _, note = attacks.dlg(scene, seen, site.train.whole(), rounds.seed.fold("dlg", rounds.done, client))
        got, blind = numbers.get("psnr"), numbers.get("psnr_blind")
        found += [] if got is None or blind is None else [(got, blind)]
        notes |= {note: None} if note else {}
    if not found:
        return f"DLG at round {rounds.done}: {'; '.join(notes)}"
    got, blind = (float(np.mean(column)) for column in zip(*found, strict=True))
    return (
        f"DLG at round {rounds.done}: PSNR {got:.2f} dB, of {len(found)} clients; the mean picture of all clients has "
        f"{blind:.2f} dB"
    )


def newcomers(asked: argparse.Namespace, method: Method, rounds: Rounds, new: Federation) -> tuple[float, str]:
    """The accuracy of clients that never took part, over all their rows."""
    mode = "fine_tune" if asked.fine_tuning_epoch_new else "none"
    whole = getattr(method, "base", method) if isinstance(method, Practical) else method
    scores = evaluate_newcomers(
        whole,
        new,
        mode,
        max(1, asked.fine_tuning_epoch_new),
        state=rounds.state,
        rounds=rounds.done,
        seed=rounds.seed.value,
    )
    rows = sum(c["rows"] for c in scores.clients)
    accuracy = sum(c["rows"] * c["accuracy"] for c in scores.clients) / rows
    tuned = f"after {asked.fine_tuning_epoch_new} epochs of tuning" if asked.fine_tuning_epoch_new else "as it is"
    return accuracy, f"{len(scores.clients)} newcomers, the {scores.start} {tuned}: accuracy {accuracy:.4f}"


def save_model(rounds: Rounds, path: Path) -> str | None:
    """The last global model, if there is one, as safetensors."""
    whole, net = rounds.method.global_model(rounds.state), getattr(rounds.method, "net", None)
    if whole is None or net is None:
        return None
    full = {name: tensor.contiguous() for name, tensor in net.full(whole).items()}
    write_atomic(path, safetensors.torch.save(full))
    return str(path)


DELAY = 0.1  # seconds that one message on a slow line takes at most, as in PFLlib

S = TypeVar("S")
U = TypeVar("U")


@dataclass(frozen=True)
class joining:
    """Ask a random number of clients, from ``least`` up to all, drawn without replacement, anew each round."""

    least: int

    def __call__(self, state: object, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
        count = int(seed.fold("how many").numpy().integers(self.least, len(ids) + 1))
        return at_random(count)(state, ids, seed)


def some(rate: float, ids: Sequence[ClientId], seed: Seed) -> tuple[ClientId, ...]:
    """int(rate * N) of the clients."""
    drawn = seed.numpy().choice(len(ids), int(rate * len(ids)), replace=False)
    return in_order([ids[i] for i in drawn])


@dataclass(frozen=True, kw_only=True)
class Practical(OnBase):
    """A method in less than ideal conditions.

    Args:
        base: The method.
        join: If set, at least so many clients are asked, at random up to all.
        drop_rate: The share of a round's uploads that get lost, after the clients have worked.
        slow: Clients that do a random number of epochs, from 1 to half of them.
        late: Clients on slow lines: each message takes a random time up to ``DELAY`` seconds.
        patience: Uploads of clients whose messages take longer than this on average, in seconds, are left out. Only
            simulated time counts, so that results do not depend on the machine.
        seed: Of the simulated times.
    """

    base: Method
    join: int | None = None
    drop_rate: float = 0.0
    slow: tuple[ClientId, ...] = ()
    late: tuple[ClientId, ...] = ()
    patience: float = 10000.0
    seed: int = 0

    def plan(self, state: object, round: int) -> tuple[str, ...]:
        """As the base."""
        return self.base.plan(state, round)

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's."""
        return tuple(self._worse(e) for e in self.base.exchanges())

    def _worse(self, exchange: Exchange) -> Exchange:
        if self.join is not None and isinstance(exchange.cohort, at_random):
            exchange = replace(exchange, cohort=joining(self.join))
        work = exchange.work
        if exchange.up == unmoved:
            return exchange
        if not isinstance(work, Train | InTurn):
            if self.slow and exchange.name == "train":
                raise InputError("-tsr: this algorithm's local work has no epochs that could be fewer. Leave it out.")
            return exchange
        if self.drop_rate or self.late:
            exchange = replace(exchange, up=partial(self._up, exchange.up))
        if not self.slow:
            return exchange
        slowed = InTurn(tuple(map(self._slowed, work.works))) if isinstance(work, InTurn) else self._slowed(work)
        return replace(exchange, work=slowed)

    def _slowed(self, work: Train) -> Train:
        return replace(work, start=partial(self._start, work.start, work.epochs))

    def _start(
        self, begin: Callable[..., Job], epochs: int, download: object, client: object, site: Site, context: Context
    ) -> Job:
        job = begin(download, client, site, context)
        if context.client not in self.slow:
            return job
        most = max(1, (job.epochs or epochs) // 2)
        return replace(job, epochs=int(context.seed.fold("slow").numpy().integers(1, most + 1)))

    def _up(
        self, up: Callable[[S, Iterable[Reply[U]], Context], S], state: S, replies: Iterable[Reply[U]], context: Context
    ) -> S:
        heard = list(replies)
        count = int((1 - self.drop_rate) * len(heard))
        drawn = context.seed.fold("lost").numpy().choice(len(heard), count, replace=False)
        there = [heard[i] for i in sorted(drawn)]
        return up(
            state, iter([reply for reply in there if self.seconds(reply.client, context) <= self.patience]), context
        )

    def seconds(self, client: ClientId, context: Context) -> float:
        """The mean simulated time of the client's messages, two a round, up to this round."""
        if client not in self.late:
            return 0.0
        draws = Seed(self.seed).fold("delay", client).numpy().random(context.round + 1)
        return float(2 * DELAY * draws.mean())
