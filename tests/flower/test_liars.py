"""A node with a good key, whose answers are changed on their way out; in the second round it sends its first again.

A SuperLink, an honest site and one that lies, all real processes with TLS and node keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest

pytest.importorskip("flwr")

from helpers.command import lines
from helpers.deployed import STRANGER, Standing, at_home, recipe
from helpers.liar import Liar
from helpers.sabotage import Without
from helpers.tampering import Tamper, flip, in_turn, spoilt, uploads

pytestmark = [pytest.mark.flower, pytest.mark.timeout(3600)]
HONEST = "oslo"
LIES: list[tuple[Tamper, str]] = [  # the client of each sends this in the first round
    (spoilt(float("nan")), "non-finite numbers"),
    (uploads(lambda frame: frame + frame), "checksum"),
    (uploads(lambda frame: frame[: len(frame) // 2]), "checksum"),
    (uploads(flip), "checksum"),
]


@pytest.fixture
def standing(tmp_path) -> Iterator[Standing]:
    made = Standing(tmp_path)
    try:
        made.sites.join(HONEST)
        yield made
    finally:
        made.close()


def test_a_site_that_lies_is_left_out_with_a_reason_and_the_run_goes_on(standing):
    config = recipe("fedavg")
    config = config.model_copy(update={"cohort": config.cohort.model_copy(update={"min_replies": 1})})  # 4 of 7 lie
    with Liar(standing.sites, STRANGER, [in_turn(*(how for how, _ in LIES)), None]):
        result = standing.run("lies", config)
    ledger = lines(standing.folder / "lies" / "dropped.jsonl")
    liars = [f"{STRANGER}-{number}" for number in range(len(LIES))]
    assert [(row["round"], row["client"]) for row in ledger] == [(number, c) for number in (1, 2) for c in liars]
    reasons = [*(words for _, words in LIES), *("replayed: an answer to another batch of jobs" for _ in LIES)]
    for row, words in zip(ledger, reasons, strict=True):
        assert re.search(words, row["reason"]), row
    assert (result["quarantined"], result["rounds"]) == (2 * len(LIES), 2)

    def honest(method: Any) -> Any:
        return reduce(lambda base, client: Without(base=base, client=client), liars, method)

    assert result["digest"] == at_home(config, (HONEST, STRANGER), honest)
