"""One run in PFLlib's order: score, then train, round after round."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch

from fedquilt.analysis.newcomers import evaluate_newcomers
from fedquilt.audit import attacks
from fedquilt.audit.cells import values_of
from fedquilt.audit.sight import network, sight
from fedquilt.audit.tapping import overheard
from fedquilt.compat.algorithms import method_settings, model_settings
from fedquilt.compat.practical import Practical, some
from fedquilt.compat.results import Traffic
from fedquilt.compat.scores import PFLlibScores, evaluation, grade
from fedquilt.config.config import Config, parse
from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.engines.auto import Auto
from fedquilt.errors import InputError
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
    found: str | None = method.warned(state) if hasattr(method, "warned") else None
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
    scene = attacks.Scene(network(method), *values_of(federation), iterations=10, restarts=1, batch_size=images)
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
