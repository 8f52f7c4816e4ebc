"""Long tails, shifts and every kind of partition, from a recipe to the federation."""

from __future__ import annotations

import pytest

from fedquilt.config.config import dump, parse
from fedquilt.errors import ConfigError, InputError
from fedquilt.registry import PARTITIONS
from fedquilt.runs.build import federation_of

PARTITION = {
    "iid": {},
    "dirichlet": {"alpha": 0.3},
    "dirichlet_per_client": {"alpha": 0.3, "minimum": 2},
    "shards": {},
    "class_groups": {
        "groups": [[0, 1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 9]],
        "overlap": True,
        "noise_ratio": 0.1,
        "clients_per_group": [5, 4, 3],
    },
    "pathological": {"classes_per_client": 3},
    "log_normal": {"sigma": 1.0},
    "power_law": {"exponent": 1.0},
    "dirichlet_sizes": {"alpha": 1.0},
    "dirichlet_choice": {"alpha": 0.5, "random_state": 7},
    "dirichlet_cuts": {"alpha": 0.5},
    "truncated_per_client": {"alpha": 0.5},
    "own_tails": {"factor": 0.1},
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_every_partition_works_from_a_recipe(kind):
    config = parse({"data": {"clients": 12, "partition": {"kind": kind, **PARTITION[kind]}, "drop_empty": True}})
    data = federation_of(config)
    assert len(data.ids) <= 12
    assert (data.groups is not None) == (kind == "class_groups")
    rows = sum(data.summary()["rows"].values())
    assert rows < 1797 if kind == "own_tails" else rows == 1797  # a tail of one's own gives rows to nobody


def test_a_long_tail_is_made_before_the_division():
    config = parse({"data": {"clients": 3, "partition": "iid", "long_tail": {"factor": 0.1}, "test": 0, "valid": 0}})
    assert config.data.long_tail.kind == "exponential"
    assert "[data.long_tail]" in dump(config)
    counts = federation_of(config).label_counts().sum(0).tolist()
    assert counts == [178, 139, 107, 83, 64, 50, 38, 29, 23, 17]  # int(179.7 * 0.1 ** (c / 9)), 178 at hand
    step = parse({"data": {"clients": 3, "long_tail": {"kind": "step", "factor": 0.5}, "test": 0, "valid": 0}})
    assert federation_of(step).label_counts().sum(0).tolist()[5:] == [89] * 5


def test_a_shift_is_applied_to_the_division():
    config = parse({"data": {"clients": 4, "shift": {"kind": "rotation", "angles": [0, 180]}}})
    assert federation_of(config).groups == {0: 0, 1: 1, 2: 0, 3: 1}


def test_empty_clients_are_dropped_on_request():
    tiny = {"clients": 30, "limit": 60, "partition": {"kind": "dirichlet_choice", "alpha": 0.05}}
    with pytest.raises(InputError, match="clients have no training samples"):
        federation_of(parse({"data": tiny}))
    assert 0 < len(federation_of(parse({"data": {**tiny, "drop_empty": True}})).ids) < 30


def test_problems_are_told():
    with pytest.raises(ConfigError, match=r"data.long_tail: ExponentialTail: factor .* got 100.0.* That is 0.01 here"):
        parse({"data": {"long_tail": {"kind": "exponential", "factor": 100}}})
    with pytest.raises(ConfigError, match=r"unknown long_tail 'exponentail'; did you mean 'exponential'"):
        parse({"data": {"long_tail": {"kind": "exponentail", "factor": 0.1}}})
    with pytest.raises(ConfigError, match=r"data.shift.angels: unknown key for 'rotation'; did you mean 'angles'"):
        parse({"data": {"shift": {"kind": "rotation", "angels": [0]}}})
