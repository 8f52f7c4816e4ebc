"""Settings: defaults, overrides, every problem at once, and files that can be read back."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt.config.config import Config, apply, dump, load, parse
from fedquilt.errors import ConfigError, InputError
from fedquilt.registry import METHODS


def problems(raw: dict[str, Any]) -> list[str]:
    """What is wrong with these settings."""
    with pytest.raises(ConfigError) as told:
        parse(raw)
    return told.value.problems


def written(folder: Path, text: str) -> Path:
    """A recipe file."""
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


# Defaults and overrides


def test_an_empty_file_is_a_run_with_the_documented_defaults(tmp_path: Path) -> None:
    config = load(written(tmp_path, ""))
    assert config == Config()
    assert (config.rounds, config.seed, config.name) == (20, 0, "run")
    assert (config.method.kind, config.model.kind, config.train.optimizer.options) == ("fedavg", "mlp", {"lr": 0.05})
    assert (config.data.source.kind, config.data.clients, config.data.test, config.data.valid) == (
        "digits",
        20,
        0.2,
        0.1,
    )
    assert (config.engine.kind, config.evaluate.every, config.stop.patience) == ("auto", 1, None)


def test_the_recipes_of_the_repository_are_right() -> None:
    recipes = sorted((Path(__file__).parents[3] / "recipes").glob("*.toml"))
    assert recipes
    assert all(load(path).name == path.stem for path in recipes)


def test_overrides_reach_every_depth_and_keep_their_neighbours(tmp_path: Path) -> None:
    path = written(tmp_path, 'rounds = 3\n[train]\noptimizer = { kind = "sgd", lr = 0.5, momentum = 0.9 }\n')
    config = load(
        path,
        [
            "rounds=7",
            "train.optimizer.lr=0.25",
            "method.kind=fedprox",
            "method.mu=0.5",
            "data.mean=[0.1, 0.2]",
            "compare.seeds=[4,5]",
            'compare.methods=["fedavg", {kind = "fedprox", mu = 1}]',
            "engine.kind = workers",
            "output.folder=a=b",
            "evaluate.local=true",
            "train.schedule={kind='step_down', milestones=[3, 6]}",
        ],
    )
    assert config.rounds == 7
    assert config.train.optimizer.options == {"lr": 0.25, "momentum": 0.9}
    assert (config.method.kind, config.method.options) == ("fedprox", {"mu": 0.5})
    assert config.data.mean == [0.1, 0.2]
    assert config.compare.seeds == [4, 5]
    assert [(m.kind, m.options) for m in config.compare.methods] == [("fedavg", {}), ("fedprox", {"mu": 1})]
    assert config.engine.kind == "workers"
    assert config.output.folder == "a=b"
    assert config.evaluate.local is True
    assert config.train.schedule is not None
    assert config.train.schedule.options == {"milestones": [3, 6]}


def test_a_bare_name_is_a_choice_without_options(tmp_path: Path) -> None:
    config = load(written(tmp_path, 'method = "local_only"\n[data]\npartition = "iid"\n'), ["train.optimizer=adam"])
    assert (config.method.kind, config.data.partition.kind, config.train.optimizer.kind) == (
        "local_only",
        "iid",
        "adam",
    )
    assert problems({"method": "fedavgg"}) == [
        "method.kind: unknown method 'fedavgg'; did you mean 'fedavg'? ('fedquilt methods' lists them)"
    ]


def test_lists_are_typed_as_words_and_own_data_take_the_place_of_named_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, '[data]\nsource = "digits"\n')
    for methods in ("fedavg,ditto", "[fedavg, ditto]", '["fedavg", "ditto"]'):
        config = load(path, [f"compare.methods={methods}", "compare.seeds=3,4"])
        assert [choice.kind for choice in config.compare.methods] == ["fedavg", "ditto"]
        assert config.compare.seeds == [3, 4]
    assert load(path, ["compare.seeds=7"]).compare.seeds == [7]
    notes = [record.getMessage() for record in caplog.records]
    assert load(path, ["compare.seeds=[7]", "rounds=3"]).compare.seeds == [7]
    assert load(path, ["compare.seeds=0"]).compare.seeds == [0]
    assert [record.getMessage() for record in caplog.records] == notes
    assert load(path, ["compare.seeds=3"]).compare.seeds == [3]
    assert "the one seed 3; 3 seeds are compare.seeds=0,1,2." in caplog.text
    with pytest.raises(ConfigError, match=r"compare.methods.1.kind: unknown method 'dittto'; did you mean 'ditto'"):
        load(path, ["compare.methods=fedavg,dittto"])
    data = load(path, ["data.path=mine.csv"]).data
    assert (data.path, data.source) == ("mine.csv", None)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("lr", "train.optimizer.lr"),
        ("train.lr", "train.optimizer.lr"),
        ("batch_size", "train.batch_size"),
        ("method.epochs", "train.epochs"),
        ("mu", "method.mu"),
        ("alpha", "data.partition.alpha"),
        ("source", "data.source"),
    ],
)
def test_a_setting_in_the_wrong_section_is_told_where_it_belongs(wrong: str, meant: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{wrong}: unknown key.*; did you mean '{meant}'\?"):
        load(written(tmp_path, ""), [f"{wrong}=3"])


def test_the_line_that_is_no_toml_is_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not valid TOML: .* \(at line 2, column 8\): name = fedavg"):
        load(written(tmp_path, "rounds = 3\nname = fedavg\n"))


def test_overrides_do_not_change_what_they_were_applied_to() -> None:
    raw = {"train": {"epochs": 1}}
    made, wrong = apply(raw, ["train.epochs=5"])
    assert made == {"train": {"epochs": 5}}
    assert raw == {"train": {"epochs": 1}}
    assert wrong == []


# Problems


def test_all_problems_of_a_file_and_its_overrides_are_told_at_once(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        roundz = 3
        seed = -1
        name = "no spaces please"
        [data]
        clients = "many"
        test = 1.5
        mean = "x"
        partition = { kind = "dirichlett" }
        [model]
        kind = "mlpp"
        [method]
        kind = "fedavgg"
        [train]
        batch_size = 0
        optimizer = { kind = "sgd", lr = -1, momentumm = 0.9 }
        schedule = { kind = "cosine" }
        [engine]
        kind = "gpu"
        [compare]
        methods = ["fedavg", { kind = "fedprox", muu = 1 }, { mu = 1 }, 3]
        seeds = [0, 0]
        """,
    )
    with pytest.raises(ConfigError) as told:
        load(path, ["nonsense", "=3", "roundz.deep=1", "evaluate.evry=2", "stop.patience=soon"])
    found = told.value.problems
    expected = {
        "'nonsense' changes no setting: write KEY=VALUE, for example rounds=5": "",
        "'=3' changes no setting: write KEY=VALUE, for example rounds=5": "",
        "override 'roundz.deep=1': 'roundz' is not a section": "",
        "roundz: unknown key; did you mean 'rounds'?": "",
        "seed: ": "should be at least 0, got -1",
        "name: ": "got 'no spaces please'",
        "data.clients: ": "should be a whole number, got 'many'",
        "data.test: ": "less than 1, got 1.5",
        "data.mean: ": "should be a number, got 'x'",
        "data.partition.kind: ": "unknown partition 'dirichlett'; did you mean 'dirichlet'?",
        "model.kind: ": "unknown model 'mlpp'; did you mean 'mlp'?",
        "method.kind: ": "unknown method 'fedavgg'; did you mean 'fedavg'?",
        "train.batch_size: ": "should be at least 1, got 0",
        "train.optimizer.momentumm: ": "unknown key for 'sgd'; did you mean 'momentum'?",
        "train.optimizer: ": "lr must be a positive number, got -1",
        "train.schedule.rounds: ": "missing",
        "engine.kind: ": "unknown engine 'gpu' (known: auto, flower-simulation, lanes, local, workers)",
        "compare.methods.1.muu: ": "unknown key for 'fedprox'; did you mean 'mu'?",
        "compare.methods.2.kind: ": "missing",
        "compare.methods.3: ": "should be a section, got 3",
        "compare.seeds: ": "must differ, got [0, 0]",
        "evaluate.evry: ": "unknown key; did you mean 'every'?",
        "stop.patience: ": "should be a whole number, got 'soon'",
    }
    for begins, holds in expected.items():
        assert [p for p in found if p.startswith(begins) and holds in p], (begins, found)
    assert len(found) == len(expected), found
    assert str(told.value).startswith(f"{path}: {len(expected)} problems\n  - ")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"train": 3}, ["train: should be a section, got 3"]),
        ({"data": {"mean": [0.1, "a"]}}, ["data.mean.1: should be a number, got 'a'"]),
        ({"model": {"kind": "mlp", "hiden": [3]}}, ["model.hiden: unknown key for 'mlp'; did you mean 'hidden'?"]),
        ({"model": {"kind": "logistic", "hidden": [3]}}, ["model.hidden: unknown key for 'logistic'"]),
        ({"train": {"schedule": {"gamma": 1}}}, ["train.schedule.kind: missing"]),
        (
            {"data": {"source": "digits", "path": "x.npz"}},
            ["data: source and path are mutually exclusive; give only one of them"],
        ),
        ({"method": {"kind": "fedprox", "mu": "big"}}, ["method.mu: should be a number, got 'big'"]),
        (
            {"method": {"kind": "fedavg", "aggregate": "unifrom_mean"}},
            [
                "method.aggregate: unknown aggregate 'unifrom_mean'; did you mean 'uniform_mean'? (known: arc, "
                "bucketing, bulyan, centred_clip, clip_norm, dare, geometric_median, krum, meamed, mean, median, "
                "multi_krum, nearest_mixing, stitch, task_arithmetic, ties, trimmed_mean, uniform_mean)"
            ],
        ),
        ({"method": {"kind": "fedavg", "aggregate": {"keep": 1}}}, ["method.aggregate.kind: missing"]),
        ({"method": {"aggregate": {"kind": "mean", "keep": 1}}}, ["method.aggregate.keep: 'mean' has no options"]),
        (
            {"method": {"aggregate": {"kind": "ties", "kep": 1}}},
            ["method.aggregate.kep: unknown key for 'ties'; did you mean 'keep'?"],
        ),
        (
            {"method": {"aggregate": {"kind": "ties", "keep": 2}}},
            ["method.aggregate: keep is the fraction of changes to keep, in (0, 1], got 2.0."],
        ),
        (
            {"method": {"kind": "local_only", "aggregate": "median"}},
            [
                "method.aggregate: 'local_only' takes none: nothing is averaged; every client keeps its own model. "
                "Leave it out, or use another method"
            ],
        ),
        (
            {"method": {"kind": "fedavg", "batch_size": 3}},
            ["method.batch_size: unknown key for 'fedavg'; did you mean 'train.batch_size'?"],
        ),
        ({"data": {"partition": {"kind": "dirichlet"}}}, ["data.partition.alpha: missing"]),
        (
            {"data": {"partition": {"kind": "class_groups", "groups": [[0], [0]]}}},
            [
                "data.partition: ClassGroups: classes [0] are in more than one group. Make the groups disjoint, or set "
                "overlap=True to divide the rows of shared classes."
            ],
        ),
        (
            {"compare": {"methods": []}},
            ["compare.methods: list should have at least 1 item after validation, not 0, got []"],
        ),
        ({"cohort": {"fraction": 0}}, ["cohort.fraction: should be more than 0, got 0"]),
        ({"rounds": 2.5}, ["rounds: should be a whole number, got 2.5"]),
        ({"cohort": {"min_replies": True}}, ["cohort.min_replies: should be a number, got True"]),
        ({"engine": {"capture": "maybe"}}, ["engine.capture: should be 'auto' or true or false, got 'maybe'"]),
        ({"cohort": {"min_replies": 1.5}}, ["cohort.min_replies: should be a whole number or at most 1, got 1.5"]),
        ({"cohort": {"min_replies": float("nan")}}, ["cohort.min_replies: should be a finite number, got nan"]),
    ],
)
def test_each_problem_names_the_setting_and_the_value(raw: dict[str, Any], told: list[str]) -> None:
    assert problems(raw) == told


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recipe\.toml: 1 problem\n  - not valid TOML: .*line 2"):
        load(written(tmp_path, "rounds = 3\nrounds 3\n"))


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(tmp_path / "bytes.toml")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file '.*absent\.toml'"):
        load(tmp_path / "absent.toml")
    with pytest.raises(InputError, match=r"is a folder\. Give the path of"):
        load(tmp_path)


# Identity

_SAME = [
    "engine.kind=workers",
    "engine.processes=3",
    'engine.devices=["cuda:0"]',
    "snapshot.every=7",
    "method.label='FedProx, as in the paper'",
    "snapshot.seconds=0",
    "output.folder=elsewhere",
    "output.personal_models=true",
    "output.checkpoints=true",
    "compare.seeds=[9]",
    'compare.methods=["fedavg"]',
    "compare.target=0.5",
    "compare.frame=true",
    'robustness.rules=["median"]',
    'robustness.attacks=["alie"]',
    "robustness.shares=[0.3]",
    'robustness.by=["samples"]',
    "robustness.seeds=[7]",
    "robustness.most_cost=0.1",
    "engine.nodes=2",
    "engine.width=3",
    "output.stages=true",
    "engine.exact=false",
    "engine.at_once=2",
    "engine.capture=false",
    "output.withhold_test=true",
    'output.trackers=["tensorboard", {kind="mlflow", uri="sqlite:///x.db"}]',
    "sweep.search=random",
    "sweep.points=3",
    "sweep.seeds=[4]",
    "sweep.seed=9",
    "sweep.space.method.mu=[0.1, 2]",
    "sweep.space={train={batch_size={low=4, high=64, log=true}, epochs=[1, 2]}, method=['fedavg', 'fedprox']}",
    "network.uplink_mbps=2",
    "network.downlink_mbps=2.5",
    "network.latency_ms=5",
    "network.compute_scale=3",
    "network.seconds_per_step=0.1",
    "network.server_seconds=0.5",
    "network.spread=0.2",
    "network.seed=4",
    "network.profiles={wifi=0.25, phone-4g=0.75}",
    "network={own={bus={uplink_mbps=1, latency_ms=9}}, profiles={bus=1.0}}",
    "meters.energy=false",
    "flower.nodes=3",
    "flower.wait=1",
    "flower.deadline=1",
    "flower.ask=1",
]
_OTHER = [
    "task=regression",
    "codec=half",
    "download_codec=half",
    "name=x",
    "seed=1",
    "rounds=21",
    "data.source=mnist5k",
    "data.path=a.npz",
    "data.clients=3",
    "data.label=kind",
    "data.user=who",
    "data.size=32",
    "data.features=['age']",
    "data.text=body",
    "data.words=9",
    "data.categories=['ward']",
    "data.standardise=clients",
    "data.standardise=false",
    "data.tokeniser=e",
    "data.length=5",
    "data.partition.alpha=0.5",
    "data.partition=iid",
    "data.by_user=true",
    "data.test=0.3",
    "data.valid=0.2",
    "data.common_test=0.2",
    "data.common_valid=0.2",
    "data.pretraining=0.2",
    "data.local_tests=true",
    "data.transforms=['random_flip']",
    "data.transforms=[{kind='resize', size=4}, 'random_flip']",
    "data.unlabelled=0.5",
    "data.newcomers=2",
    "stream={kind='by_class', groups=[[0, 1], [2, 3]]}",
    "stream={kind='drift', at=2, shift={kind='rotation', angles=[90]}}",
    "stream={kind='datasets', sources=['digits'], delays=[0, 1]}",
    "data.long_tail.factor=0.1",
    "data.shift=rotation",
    "data.drop_empty=true",
    "data.limit=10",
    "data.mean=0.1",
    "data.std=0.9",
    "data.seed=1",
    "model=logistic",
    "model={kind='mlp', hidden=[7]}",
    "method=fedavg",
    "method.mu=0.2",
    "train.epochs=2",
    "train.epochs_first=2",
    "train.steps=4",
    "train.batch_size=5",
    "train.optimizer.lr=0.3",
    "train.schedule={kind='warm_up', rounds=3}",
    "train.clip=1.0",
    "cohort.fraction=0.5",
    "train.precision=bfloat16",
    "cohort.count=2",
    "evaluate.every=2",
    "evaluate.clients=2",
    "evaluate.local=true",
    "stop.patience=3",
    "stop.min_delta=0.1",
    "stop.metric=loss",
    "cohort.min_replies=2",
    "cohort.max_growth=50.0",
    "checks.false_alarms=0.05",
    "checks.strikes=2",
    "attack=sign_flip",
    "attack={kind='sign_flip', clients=[1, 2]}",
    "flower.classes=12",
    "train.loss=torch.nn.functional:cross_entropy",
    "train.loop=builtins:print",
    "metrics=['torch.nn.functional:cross_entropy']",
    "callbacks=['fedquilt:Callback']",
]
_BASE = {
    "method": {"kind": "fedprox", "mu": 0.1},
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.3}},
    "train": {"optimizer": {"kind": "sgd", "lr": 0.05}},
}


def identity(override: str | None = None) -> str:
    """The identity of the base settings with one change."""
    made, _ = apply(_BASE, [] if override is None else [override])
    return parse(made).identity()


@pytest.mark.parametrize("override", _SAME)
def test_what_cannot_change_numbers_does_not_change_the_identity(override: str) -> None:
    assert identity(override) == identity()


def test_everything_else_changes_the_identity() -> None:
    found = [identity(), *(identity(o) for o in _OTHER)]
    assert len(set(found)) == len(found)


def test_where_a_file_is_does_not_matter_but_its_name_does() -> None:
    assert identity("data.path=/a/x.npz") == identity("data.path=b/x.npz") != identity("data.path=b/y.npz")
    assert identity("data.tokeniser=/a/x") == identity("data.tokeniser=b/x") != identity("data.tokeniser=b/y")


def test_options_without_a_name_are_those_of_the_default() -> None:
    config = parse({"model": {"hidden": [7]}, "train": {"optimizer": {"lr": 0.5}}, "data": {"partition": {"alpha": 1}}})
    chosen = [(c.kind, c.options) for c in (config.model, config.train.optimizer, config.data.partition)]
    assert chosen == [("mlp", {"hidden": [7]}), ("sgd", {"lr": 0.5}), ("dirichlet", {"alpha": 1})]


def test_every_setting_is_in_one_of_the_two_lists() -> None:
    named = {o.partition("=")[0] for o in _SAME + _OTHER}
    for section, info in Config.model_fields.items():
        if section == "script":  # what a script gave, which nobody sets
            continue
        inner = getattr(info.annotation, "model_fields", {})
        paths = [f"{section}.{leaf}" for leaf in inner if leaf != "kind"] or [section]
        for path in paths:
            assert any(n == path or n.startswith(f"{path}.") for n in named), path


# Round exchange


def read_back(config: Config) -> Config:
    """What a resumed run would read."""
    return parse(tomllib.loads(dump(config)))


@pytest.mark.parametrize("override", _SAME + _OTHER)
def test_each_setting_survives_the_file(override: str) -> None:
    config = parse(apply(_BASE, [override])[0])
    assert read_back(config) == config
    assert read_back(config).identity() == config.identity()


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
numbers = st.floats(min_value=1e-300, max_value=1e300)
finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=30, deadline=None)
@given(
    folder=texts,
    path=st.none() | texts,
    lr=numbers,
    betas=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2),
    mean=finite | st.lists(finite, max_size=3),
    groups=st.lists(st.integers(0, 9), min_size=1, max_size=9, unique=True),
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3, unique=True),
    mu=numbers,
    patience=st.none() | st.integers(1, 2**31 - 1),
    local=st.booleans(),
)
def test_any_settings_survive_the_file(
    folder: str,
    path: str | None,
    lr: float,
    betas: tuple[float, float],
    mean: Any,
    groups: list[int],
    seeds: list[int],
    mu: float,
    patience: int | None,
    local: bool,
) -> None:
    config = parse(
        {
            "data": {"path": path, "mean": mean, "partition": {"kind": "class_groups", "groups": [groups]}},
            "train": {"optimizer": {"kind": "adam", "lr": lr, "betas": list(betas)}},
            "compare": {"seeds": seeds, "methods": ["fedavg", {"kind": "fedprox", "mu": mu}]},
            "stop": {"patience": patience},
            "evaluate": {"local": local},
            "output": {"folder": folder},
        }
    )
    assert read_back(config) == config
    assert read_back(config).identity() == config.identity()


def test_options_alone_take_the_default_kind() -> None:
    config = parse(
        {"train": {"optimizer": {"lr": 0.5}}, "data": {"partition": {"alpha": 2.0}}, "model": {"hidden": [3]}}
    )
    assert (config.train.optimizer.kind, config.data.partition.kind, config.model.kind) == ("sgd", "dirichlet", "mlp")


def test_natural_clients_are_all_of_them_unless_a_number_is_given() -> None:
    assert parse({"data": {"by_user": True}}).data.clients is None
    assert parse({"data": {"by_user": True, "clients": 3}}).data.clients == 3
    assert parse({}).data.clients == 20


def test_where_a_file_lies_does_not_change_the_run() -> None:
    here, there = (parse({"data": {"path": p}}).identity() for p in ("/a/x.npz", "b/x.npz"))
    assert here == there != parse({"data": {"path": "/a/y.npz"}}).identity()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_of_the_registry_can_be_configured(name: str) -> None:
    assert parse({"method": {"kind": name}}).method.kind == name
