"""The apps that Flower loads: a server that plays a recipe, and a client that serves a site's data."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedquilt.deploy.told import NODES, write
from fedquilt.engines.flower.apps import FlowerClient, FlowerServer, versions
from fedquilt.engines.flower.resident import ask
from fedquilt.errors import FedquiltError, InputError
from fedquilt.storage.files import write_atomic

if TYPE_CHECKING:
    from fedquilt.config.config import Config
    from fedquilt.engines.flower.engine import Flower

log = logging.getLogger("fedquilt")


def client_app() -> FlowerClient:
    """The app of a node. The site's resident answers; without one this process loads the data and answers itself."""

    def serve(kind: str, frames: dict[str, bytes], context: Any) -> dict[str, bytes]:
        if "site" not in context.node_config:
            raise InputError(
                "this SuperNode does not say whose data it serves: --node-config 'site=\"/path/site.toml\"'"
            )
        file = Path(str(context.node_config["site"]))
        answer = ask(file.parent, kind, frames)
        return answer if answer is not None else answering(file)(kind, frames)

    return FlowerClient(serve)


def answering(file: Path) -> Callable[[str, dict[str, bytes]], dict[str, bytes]]:
    """How a site answers messages, from its settings."""
    from fedquilt.deploy.site import read_site, source_of
    from fedquilt.engines.flower.budget import Budget
    from fedquilt.engines.flower.keep import Keep, OnDisk, safe
    from fedquilt.engines.flower.mark import Mark
    from fedquilt.engines.flower.node import Node

    own = read_site(file)
    state = Path(own.state)
    budget = Budget(own.max_steps, own.max_epochs, own.max_jobs, own.max_seconds)
    node = Node(
        source_of(own),
        lambda run: Keep(OnDisk(state / safe(run))),
        own.trusted,
        Mark(state / "working"),
        budget,
        own.trusted_code,
        state / "refused-code",
    )
    return lambda kind, frames: node.answer(kind, frames, versions())


def server_app(recipe: Path) -> FlowerServer:
    """The app of the server: it plays the recipe and keeps the run in the folder that the app's settings name."""

    def start(grid: Any, context: Any) -> None:
        from fedquilt.config.config import load

        play(grid, load(recipe), Path(str(context.run_config["folder"])))

    return FlowerServer(start)


def play(grid: object, config: Config, folder: Path) -> None:
    """Play a run on a federation. What ends it early is written down for the command that follows the run."""
    from fedquilt.deploy.processes import write_down
    from fedquilt.engines.flower.engine import Flower, Patience
    from fedquilt.runs.build import result_for, run_of

    write_down(folder / "server.pid", os.getpid())
    (folder / "failure.json").unlink(missing_ok=True)
    try:
        wait = Patience(config.flower.deadline, config.flower.ask)
        engine = Flower(grid, run_key(folder), wait, lambda text: _told(folder, text))
        source = _gathered(engine, config, folder)
        if result_for(folder, source, config.rounds) is None:
            for snapshot in run_of(config, engine, folder, source):
                log.info("round %d: %s", snapshot.round, snapshot.metrics.get("test_accuracy", ""))
    except FedquiltError as error:
        failure = {"error": str(error), "kind": type(error).__name__, "exit_code": error.exit_code}
        write_atomic(folder / "failure.json", json.dumps(failure).encode())
        raise


def _gathered(engine: Flower, config: Config, folder: Path) -> Any:
    """The federation; a run that goes on waits for the clients it began with, whoever else has come meanwhile."""
    from fedquilt.records.record import pack, unpack

    place, settings = folder / "flower.clients", config.flower
    begun = unpack(place.read_bytes()) if place.exists() else []
    source = engine.gather(settings.nodes, settings.wait, settings.classes, begun)
    write_atomic(place, pack([*source.ids, *(c for c in source.evaluated if c not in source.ids)]))
    return source


def run_key(folder: Path) -> str:
    """What keys the nodes' files for this run: drawn once, and kept with the run."""
    place = folder / "flower.key"
    if not place.exists():
        write_atomic(place, secrets.token_hex(16).encode())
    return place.read_text(encoding="utf-8")


def _told(folder: Path, text: str) -> None:
    """Nodes that come, go and fail: for people, not for the run."""
    log.info("%s", text)
    write(folder / NODES, text)
