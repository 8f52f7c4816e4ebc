"""Real processes, TLS and node keys: the digests of the local engine, whoever else knocks, and whatever a site sends.

One SuperLink and two sites with three clients each serve all runs of this file, several at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedquilt.deploy.flower_command import Address, free_port, start, stop, wait_for
from fedquilt.deploy.keys import Keys, make
from fedquilt.deploy.serve import Server
from fedquilt.runs.watch.board import Board
from helpers.command import lines
from helpers.deployed import SITES, STRANGER, Standing, at_home, recipe
from helpers.expired import expired
from helpers.liar import Liar
from helpers.sabotage import Without
from helpers.tampering import flip, spoilt, uploads

pytestmark = [pytest.mark.flower, pytest.mark.timeout(3600)]
AT_ONCE = min(3, len(os.sched_getaffinity(0)))  # a starved SuperLink starts its apps anew again and again
METHODS: dict[str, Any] = {
    "fedavg": "fedavg",
    "ifca": {"kind": "ifca", "n_clusters": 2},
    "hcfl": {"kind": "hcfl", "initial_rounds": 1, "n_clusters": 2},
    "hgls-hgc": {"kind": "hgls", "slopes": "hgc", "lossless": "adaptive"},
    "fedloge": "fedloge",
    "localize-stitch": "localize_stitch",
    "podfcssv": {"kind": "podfcssv", "lambda_proto": 0.1, "k_init_prototypes": 3},
}


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
        yield {name: pool.submit(standing.run, name, recipe(method)) for name, method in METHODS.items()}


@pytest.fixture(scope="module")
def expired_server(standing: Standing) -> Iterator[dict[str, object]]:
    """A SuperLink whose certificate has expired, and how a node would join it."""
    keys = expired(standing.folder / "expired", [STRANGER])
    address, log = Address("127.0.0.1", free_port()), standing.folder / "expired.log"
    command = Server(standing.folder / "old", address, standing.known).command()
    home = standing.folder / "old" / "flower"
    home.mkdir(parents=True)
    link = start([word.replace(str(standing.known.folder), str(keys.folder)) for word in command], home, log)
    try:
        wait_for(address, link, log)
        yield {"superlink": address, "ca": keys.ca, "key": keys.node(STRANGER)}
    finally:
        stop(link)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrong-key", "Failed to activate SuperNode"),
        ("foreign-ca", "CERTIFICATE_VERIFY_FAILED"),
        ("expired-server", "certificate has expired"),
    ],
)
def test_who_may_not_come_is_told_why_and_tries_again_while_the_runs_go_on(name, words, request, runs, standing):
    make(standing.folder / "others", ["localhost"], ["wrong-key"])
    others = Keys(standing.folder / "others")
    if name == "expired-server":
        trouble = request.getfixturevalue("expired_server")
    else:
        trouble = {"key": others.node("wrong-key")} if name == "wrong-key" else {"ca": others.ca}
    command = standing.sites.command(STRANGER, **trouble, state=standing.folder / f"state-{name}")
    standing.sites.start(name, command)
    said = standing.sites.said(name, "it is started again in", 300)
    standing.sites.kill(name)
    assert words in said


@pytest.mark.parametrize("name", METHODS)
def test_a_real_federation_gives_the_numbers_of_local(name, runs, standing):
    result = runs[name].result()
    assert result["quarantined"] == 0, (standing.folder / name / "ledger.jsonl").read_text()
    assert (result["rounds"], result["engine"]["nodes"]) == (2, len(SITES))
    assert result["digest"] == at_home(recipe(METHODS[name]))
    (line,) = Board(standing.folder / name).lines()  # whoever watches sees it as any other run
    assert (line["state"], line["round"], line["accuracy"]) == ("done", 2, result["last"].get("test_accuracy"))
    assert {row["kind"] for row in lines(standing.folder / name / "messages.jsonl")} >= {"begun", "finished"}


LIES: list[tuple[Any, str]] = [
    (spoilt(float("nan")), "non-finite numbers"),
    (None, "replayed: an answer to another errand"),
    (uploads(lambda frame: frame + frame), "bytes"),
    (uploads(lambda frame: frame[: len(frame) // 2]), "Truncated|take|fit|malformed"),
    (uploads(flip), "malformed frame|unknown record type"),
]


def test_a_site_that_lies_is_left_out_with_a_reason_and_the_run_goes_on(runs, standing):
    """A node with a good key, whose answers are changed on their way out; in the second round it sends its first."""
    for run in runs.values():
        run.result()  # a third node would be taken into the others' federations
    config = recipe("fedavg", len(LIES), nodes=3)
    with Liar(standing.sites, STRANGER, [how for how, _ in LIES]):
        result = standing.run("lies", config)
    assert result["quarantined"] == len(LIES)
    ledger = lines(standing.folder / "lies" / "ledger.jsonl")
    assert [row["client"] for row in ledger] == [f"{STRANGER}-0"] * len(LIES)
    for row, (_, words) in zip(ledger, LIES, strict=True):
        assert re.search(words, row["reason"]), row
    everywhere = (*SITES, STRANGER)
    without = at_home(config, everywhere, lambda method: Without(base=method, client=f"{STRANGER}-0"))
    assert result["digest"] == without
