"""The virtual clock against numbers worked by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fedquilt.config.config import parse
from fedquilt.config.links import PRESETS, Network
from fedquilt.errors import ConfigError
from fedquilt.results.statistics.targets import costs_until
from fedquilt.rounds.phases import Phase
from fedquilt.runs.virtual_clock import VirtualClock, server_seconds


def client_update(
    client: Any, down: int, up: int, seconds: float = 1.0, steps: int | None = 10, **more: Any
) -> dict[str, Any]:
    return {
        "exchange": "train",
        "place": 0,
        "client": client,
        "bytes_down": down,
        "bytes_up": up,
        "seconds": seconds,
        "steps": steps,
        **more,
    }


def test_the_slowest_participant_and_the_server() -> None:
    """Links of 8 / 2 Mbit/s are 1e6 / 2.5e5 bytes a second; 0.1 s each way; work takes 3 times as long.

    client 1: 0.1 + 2 + 3 * 1 + 0.1 + 1 =  6.2
    client 2: 0.1 + 1 + 3 * 2 + 0.1 + 4 = 11.2   <- and the server's 0.5
    """
    clock = VirtualClock(Network(downlink_mbps=8, uplink_mbps=2, latency_ms=100, compute_scale=3))
    updates = [client_update(1, 2_000_000, 250_000, 1.0), client_update(2, 1_000_000, 1_000_000, 2.0)]
    (place,) = clock.exchanges(updates, {"train": 0.5})
    assert (place.broadcast, place.train, place.upload, place.aggregate) == pytest.approx((1.1, 6.0, 4.1, 0.5))
    assert place.seconds == pytest.approx(11.7)


def test_exchanges_follow_each_other_and_equal_ones_share_the_servers_seconds() -> None:
    """Exchanges 0 and 2 are of one exchange, whose server time of 1 s was measured in all: 0.5 s each."""
    clock = VirtualClock(Network())
    updates = [
        client_update(1, 9, 9, 2.0),
        client_update(2, 9, 9, 5.0),
        client_update(1, 9, 9, 7.0, place=1, exchange="search"),
        client_update(1, 9, 9, 3.0, place=2),
    ]
    found = clock.exchanges(updates, {"train": 1.0, "search": 0.25})
    assert [(t.exchange, t.seconds) for t in found] == [("train", 5.5), ("search", 7.25), ("train", 3.5)]


def test_given_seconds_per_step_make_the_clock_independent_of_the_machine() -> None:
    clock = VirtualClock(Network(seconds_per_step=0.2, compute_scale=2))
    (place,) = clock.exchanges(
        [client_update(1, 9, 9, seconds=123.0, steps=10), client_update(2, 9, 9, steps=None)], {"train": 55.0}
    )
    assert place.seconds == pytest.approx(4.0)
    fixed = VirtualClock(Network(seconds_per_step=0.2, server_seconds=1.5))
    assert fixed.exchanges([client_update(1, 9, 9)], {"train": 55.0})[0].seconds == pytest.approx(3.5)


def test_profiles_are_drawn_by_shares_and_stay_with_their_client() -> None:
    network = Network(profiles={"wifi": 1.0, "phone-4g": 3.0})
    clock, again = VirtualClock(network), VirtualClock(network)
    latencies = Counter(clock.device(c).latency for c in range(4000))
    assert set(latencies) == {0.01, 0.05}
    assert latencies[0.05] / 4000 == pytest.approx(0.75, abs=0.03)  # four standard errors
    assert [again.device(c) for c in reversed(range(50))] == [clock.device(c) for c in reversed(range(50))]
    other = VirtualClock(network.model_copy(update={"seed": 1}))
    assert [other.device(c) for c in range(50)] != [clock.device(c) for c in range(50)]
    wifi = next(d for c in range(50) if (d := clock.device(c)).latency == 0.01)
    assert (wifi.down, wifi.up, wifi.work) == pytest.approx((8e-8, 4e-7, PRESETS["wifi"].compute_scale))


def test_the_spread_is_log_normal() -> None:
    clock = VirtualClock(Network(uplink_mbps=8, spread=0.5))
    found = np.log([clock.device(c).up * 1e6 for c in range(4000)])
    assert (found.mean(), found.std()) == pytest.approx((0.0, 0.5), abs=0.03)
    assert clock.device(3).down == 0.0  # no limit has no spread


def test_the_server_works_in_all_phases_but_waiting() -> None:
    phases = [
        Phase(None, "aggregate", 100.0),
        Phase("a", "broadcast", 1.0),
        Phase("a", "train", 50.0),
        Phase("a", "upload", 2.0),
        Phase("a", "aggregate", 4.0),
        Phase(None, "evaluate", 100.0),
    ]
    assert server_seconds(phases) == {"a": 7.0}


def test_seconds_to_a_target_are_virtual_where_there_are_such() -> None:
    rows = [
        {
            "round": i + 1,
            "test_accuracy": a,
            "bytes_up": 0,
            "bytes_down": 0,
            "seconds": 1.0,
            "virtual_seconds": 60.0 * (i + 1),
        }
        for i, a in enumerate([0.1, 0.5, 0.9])
    ]
    found = costs_until(rows, 0.5)
    assert found is not None
    assert found["seconds"] == 120.0
    plain = costs_until([{k: v for k, v in r.items() if k != "virtual_seconds"} for r in rows], 0.5)
    assert plain is not None
    assert plain["seconds"] == 2.0


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ({"uplink_mbps": 0}, "network.uplink_mbps: should be more than 0, got 0"),
        ({"uplink": 3}, "network.uplink: unknown key; did you mean 'uplink_mbps'?"),
        (
            {"profiles": {"wify": 1.0}},
            "network: unknown profile 'wify'; did you mean 'wifi'? (known: hospital, phone-3g, phone-4g, wifi)",
        ),
        ({"profiles": {"wifi": -1.0}}, "network.profiles.wifi: should be more than 0, got -1.0"),
        (
            {"profiles": {"wifi": 1.0}, "latency_ms": 3},
            "network: profiles and latency_ms are mutually exclusive; define your own profiles below [network.own]",
        ),
        ({"own": {"bus": {"latency_ms": 3}}}, "network: profiles of your own need shares: profiles = { bus = 1.0 }"),
    ],
)
def test_what_is_wrong_is_told(network: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse({"network": network})
    assert error.value.problems == [told]
