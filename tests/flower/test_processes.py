"""Real processes, TLS and node keys: the digests of the local engine, whoever else knocks.

One SuperLink and two sites with three clients each serve all runs of this file, several at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedquilt.deploy.app_folder import export
from fedquilt.deploy.flower_command import FlowerError, call
from fedquilt.deploy.keys import Keys, make
from fedquilt.watch.board import Board
from helpers.command import lines
from helpers.deployed import SITES, STRANGER, Standing, at_home, recipe
from helpers.expired import Greeting, expired

pytestmark = [pytest.mark.flower, pytest.mark.timeout(3600)]
AT_ONCE = 3  # nodes do one thing at a time: others wait meanwhile
METHODS: dict[str, Any] = {  # FedAvg: test_liars and the page on deployment
    "ifca": {"kind": "ifca", "n_clusters": 2},
    "hcfl": {"kind": "hcfl", "initial_rounds": 1, "n_clusters": 2},
    "hgls-hgc": {"kind": "hgls", "gradient_codec": "hgc", "lossless": "adaptive"},
    "fedloge": "fedloge",
    "localize-stitch": "localize_stitch",
    "podfcssv": {"kind": "podfcssv", "lambda_proto": 0.1, "k_init_prototypes": 3},
}
EXPORTED = "ifca"  # this one is run by Flower's own command


@pytest.fixture(scope="module")
def standing(tmp_path_factory) -> Iterator[Standing]:
    made = Standing(tmp_path_factory.mktemp("federation"))
    try:
        for site in SITES:
            made.sites.join(site)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def runs(standing: Standing) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """All methods, begun at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ways = {name: standing.run_exported if name == EXPORTED else standing.run for name in METHODS}
        yield {name: pool.submit(ways[name], name, recipe(method)) for name, method in METHODS.items()}


TROUBLE = {
    "wrong-key": "Failed to activate SuperNode",
    "foreign-ca": "CERTIFICATE_VERIFY_FAILED",
    "expired-server": "certificate has expired",
}


def test_who_may_not_come_is_told_why_and_tries_again_while_the_runs_go_on(runs, standing):
    """Three knock at once: with a key nobody knows, with another CA's certificate, at an expired server."""
    make(standing.folder / "others", ["localhost"], ["wrong-key"])
    others, old = Keys(standing.folder / "others"), expired(standing.folder / "expired", [STRANGER])
    with Greeting(old) as address:
        given: dict[str, dict[str, object]] = {
            "wrong-key": {"key": others.node("wrong-key")},
            "foreign-ca": {"ca": others.ca},
            "expired-server": {"superlink": address, "ca": old.ca, "key": old.node(STRANGER)},
        }
        for name, other in given.items():
            command = standing.sites.command(STRANGER, **other, state=standing.folder / f"state-{name}")
            standing.sites.start(name, command)
        for name, said in standing.sites.all_said(list(given), "it is started again in", 300).items():
            assert TROUBLE[name] in said


def test_a_stranger_can_neither_register_a_key_nor_submit_a_program(runs, standing):
    """Whoever has the CA's certificate, which is public, and Flower's own command."""
    home, public = standing.folder / "stranger", standing.keys.node(f"{STRANGER}.pub")
    home.mkdir()
    app = standing.folder / "new client-app"
    export(recipe("fedavg"), app, standing.folder / "new client-run")
    lines = f'[superlink.open]\naddress = "{standing.address}"\nroot-certificates = "{standing.keys.ca}"\n'
    (home / "config.toml").write_text(lines)
    for words in (["supernode", "register", str(public)], ["supernode", "list"], ["run", str(app)], ["list"]):
        with pytest.raises(FlowerError, match="failed"):
            call(["flwr", *words, "open"], home)
    assert not (standing.folder / "new client-run").exists()


@pytest.mark.parametrize("name", METHODS)
def test_a_real_federation_gives_the_numbers_of_local(name, runs, standing):
    result = runs[name].result()
    assert result["quarantined"] == 0, (standing.folder / name / "dropped.jsonl").read_text()
    assert (result["rounds"], result["engine"]["nodes"]) == (2, len(SITES))
    assert result["digest"] == at_home(recipe(METHODS[name]))
    (line,) = Board(standing.folder / name).lines()  # whoever watches sees it as any other run
    assert (line["state"], line["round"], line["accuracy"]) == ("done", 2, result["last"].get("test_accuracy"))
    assert {row["kind"] for row in lines(standing.folder / name / "messages.jsonl")} >= {"begun", "finished"}
