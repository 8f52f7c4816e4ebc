"""Runs side by side: the same numbers, and no trouble of one is another's."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import Config, load
from fedquilt.errors import ConfigError, ExchangeError, FedquiltError, RoundError, WorkerError
from fedquilt.metrics.memory import available
from fedquilt.studies import player
from fedquilt.studies.compare import cells, compare
from fedquilt.studies.listening import Listener, Nobody
from fedquilt.studies.player import NoAudience, PlannedRun, Player
from fedquilt.studies.side_by_side import Lines, side_by_side
from helpers.command import SMALL, lines, small, untimed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")

AUTO = SMALL.replace('kind = "local"', 'kind = "auto"')
METHODS = 'compare.methods=["fedavg","local_only","fedprox"]'


class Heard(Nobody):
    """What a run told."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.said: list[str] = []

    def round(self, done: int, metrics: Mapping[str, Any], totals: Mapping[str, Any] | None = None) -> None:
        self.rounds.append(done)

    def say(self, text: str) -> None:
        self.said.append(text)


def listened(heard: dict[Any, Heard]) -> Callable[[Any], Any]:
    @contextmanager
    def listening(what: Any) -> Iterator[Listener]:
        heard[what] = Heard()
        yield heard[what]

    return listening


def settings(folder: Path, at_once: int, *more: str) -> Config:
    return load(small(folder, AUTO), [METHODS, "compare.seeds=[0,1]", f"engine.at_once={at_once}", *more])


def results(config: Config) -> dict[str, Any]:
    found = {}
    for cell in cells(config)[1]:
        result = json.loads((cell.folder / "result.json").read_text())
        found[cell.folder.name] = (result["digest"], untimed(lines(cell.folder / "metrics/rounds.jsonl")))
    return found


def test_the_numbers_are_those_of_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "forks", lambda device: True)  # whatever threads other tests left
    monkeypatch.setattr("fedquilt.studies.compare.conclude", lambda *told: {"failed": told[4]})  # pictures take longer
    found = []
    for at_once in (1, 3):
        (tmp_path / str(at_once)).mkdir()
        config = settings(tmp_path / str(at_once), at_once)
        summary = compare(config)
        assert summary["failed"] == []
        found.append(results(config))
    assert found[0] == found[1]
    assert len(found[0]) == 6


def test_each_is_told_of_and_played_elsewhere() -> None:
    def play(what: int, listener: Listener) -> str | None:
        for done in range(1, 4):
            listener.round(done, {"test_loss": 0.5, "odd": object()}, {"bytes_up": 3})
        listener.say(f"{what} in {os.getpid()}")
        return None

    heard: dict[int, Heard] = {}
    assert side_by_side([5, 6, 7], 2, play, listened(heard)) == []
    assert [h.rounds for h in heard.values()] == [[1, 2, 3]] * 3
    places = {h.said[0] for h in heard.values()}
    assert len(places) == 3
    assert not any(str(os.getpid()) in text for text in places)


def test_one_that_fails_or_dies_does_not_stop_the_others() -> None:
    def play(what: str, listener: Listener) -> str | None:
        if what == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "leaves":
            os._exit(7)
        listener.round(1, {})
        return "it diverged" if what == "fails" else None

    heard: dict[str, Heard] = {}
    failed = dict(side_by_side(["dies", "fails", "works", "leaves"], 2, play, listened(heard)))
    assert heard["works"].rounds == [1]
    assert failed["fails"] == "it diverged"
    assert "killed by signal 9" in failed["dies"]
    assert "exit code 7" in failed["leaves"]
    assert list(failed) == ["dies", "fails", "leaves"]  # in their order


def test_an_error_that_is_not_of_one_run_is_raised_and_ends_the_others(tmp_path: Path) -> None:
    def play(what: str, listener: Listener) -> str | None:
        if what == "ours":
            raise RoundError("nobody answered")
        if what == "theirs":
            raise ZeroDivisionError("odd")
        try:
            for done in range(1000):
                time.sleep(0.05)
                listener.round(done, {})
        except KeyboardInterrupt:
            (tmp_path / "saved").write_text("")
            raise
        return None

    began = time.monotonic()
    with pytest.raises(RoundError, match=r"^nobody answered$"):
        side_by_side(["slow", "ours"], 2, play, listened({}))
    assert (tmp_path / "saved").exists()
    with pytest.raises(FedquiltError, match="ZeroDivisionError: odd"):
        side_by_side(["slow", "theirs"], 2, play, listened({}))
    assert time.monotonic() - began < 30


class Local(FedquiltError):
    """One of a plug-in's own."""

    exit_code = 77

    def __init__(self, what: str, places: list[str]) -> None:
        self.places = places
        super().__init__(f"{what}: {places}")


def test_an_error_is_what_it_was() -> None:
    class Hidden(FedquiltError):
        exit_code = 78

    def play(what: str, listener: Listener) -> str | None:
        raise {
            "config": ConfigError(["a", "b"]),
            "exchange": ExchangeError("M", "train", "up", 3, 1, "why"),
            "local": Local("here", ["x"]),
            "hidden": Hidden("odd"),
            "other": KeyError("k"),
        }[what]

    found: dict[str, Any] = {}
    for what in ("config", "exchange", "local", "hidden", "other"):
        with pytest.raises(FedquiltError) as caught:
            side_by_side([what], 1, play, listened({}))
        found[what] = caught.value
    assert isinstance(found["config"], ConfigError)
    assert found["config"].problems == ["a", "b"]
    assert str(found["config"]) == str(ConfigError(["a", "b"]))
    assert isinstance(found["exchange"], ExchangeError)
    assert (found["exchange"].client, found["exchange"].reason) == (3, "why")
    assert isinstance(found["local"], Local)
    assert found["local"].places == ["x"]
    assert [found[what].exit_code for what in ("local", "hidden", "other")] == [77, 78, 1]


def test_a_run_that_does_not_hear_its_signal_hears_that_nobody_listens() -> None:
    def play(what: str, listener: Listener) -> str | None:
        if what == "wrong":
            time.sleep(0.5)
            raise RoundError("stop")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for done in range(10**6):
            time.sleep(0.05)
            listener.round(done, {})
        return None

    began = time.monotonic()
    with pytest.raises(RoundError, match="stop"):
        side_by_side(["deaf", "wrong"], 2, play, listened({}))
    assert time.monotonic() - began < 20


def test_the_end_of_a_run_shows_though_a_process_of_its_own_holds_its_pipe() -> None:
    def play(what: str, listener: Listener) -> str | None:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    began = time.monotonic()
    ((_, reason),) = side_by_side(["one"], 1, play, listened({}))
    assert "killed by signal 9" in reason
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOMEM])
def test_without_room_for_more_processes_those_that_run_go_on(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = os.fork, list[int]()

    def fork() -> int:
        if any(Path(f"/proc/{child}").exists() for child in made):
            raise OSError(error, os.strerror(error))
        made.append(real())
        return made[-1]

    def play(what: int, listener: Listener) -> str | None:
        return f"{what} was played"

    monkeypatch.setattr(os, "fork", fork)
    assert side_by_side([1, 2, 3], 2, play, listened({})) == [(n, f"{n} was played") for n in (1, 2, 3)]
    made.append(os.getpid())
    with pytest.raises(WorkerError, match="could not be started"):
        side_by_side([1], 2, play, listened({}))
    assert gc.get_freeze_count() == 0


def test_hang_ups_that_are_ignored_stay_so() -> None:
    def play(what: int, listener: Listener) -> str | None:
        os.kill(os.getpid(), signal.SIGHUP)
        return "alive"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert side_by_side([1], 1, play, listened({})) == [(1, "alive")]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_lines_are_said_whole() -> None:
    heard = Heard()
    file = Lines(heard)
    print("one\ntw", end="", file=file)
    assert heard.said == ["one"]
    print("o", "", file=file, sep="\n")
    assert heard.said == ["one", "two"]


def test_runs_on_workers_come_after_one_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork has none of its parent's files, and must not take the numbers of theirs for its own."""
    monkeypatch.setattr(player, "forks", lambda device: True)
    config = settings(tmp_path, 2, "engine.kind='workers'", "engine.processes=1", "rounds=1")
    todo = cells(config)[1]
    with Player(config, player_federations(config), None) as found:
        found.play(todo[:1])
        found.play(todo[1:3])
        assert found.failed == []
    assert all((cell.folder / "result.json").exists() for cell in todo[:3])


def test_by_default_one_run_per_core_with_auto_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "cores", lambda: 4)
    monkeypatch.setattr(player, "available", lambda: 2**40)
    monkeypatch.setattr(player, "forks", lambda device: True)
    recipe = small(tmp_path, AUTO)

    def at_once(*changes: str) -> int:
        config = load(recipe, [METHODS, "compare.seeds=[0,1]", *changes])
        with Player(config, player_federations(config), None) as found:
            return found._at_once(cells(config)[1])

    assert at_once() == 4
    assert at_once("compare.seeds=[0]") == 3  # not more than there are
    assert at_once("engine.at_once=2") == 2
    assert at_once("engine.processes=2") == 1
    assert at_once("engine.kind='local'") == 1
    monkeypatch.setattr(player, "available", lambda: player.EACH + 2**28)
    assert at_once() == 1
    assert at_once("engine.at_once=2") == 2  # who asks for it gets it
    monkeypatch.setattr(player, "forks", lambda device: False)
    assert at_once() == 1
    with pytest.warns(UserWarning, match="one after another"):
        assert at_once("engine.at_once=2") == 1


def player_federations(config: Config) -> Any:
    from fedquilt.runs.build import federation_of

    return dict.fromkeys(config.compare.seeds, federation_of(config))


def test_memory_that_is_left_is_told() -> None:
    assert 2**20 < available() < 2**50


def test_an_interrupted_comparison_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    """Ctrl-C reaches the command alone, as from another terminal; its processes save what they have and end."""
    config = settings(tmp_path, 2, "rounds=200")
    top, todo = cells(config)
    changes = [METHODS, "compare.seeds=[0,1]", "engine.at_once=2", "rounds=200"]
    command = [sys.executable, "-m", "fedquilt", "compare", str(tmp_path / "small.toml"), *changes]
    environment = {k: v for k, v in os.environ.items() if k != "FEDQUILT_START"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        end = time.monotonic() + 120
        log = todo[1].folder / "metrics/rounds.jsonl"
        while not (log.exists() and len(log.read_text().splitlines()) > 3) and time.monotonic() < end:
            time.sleep(0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"Interrupted" in said
    assert b"Traceback" not in said
    assert len(children) == 2
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not (todo[1].folder / "result.json").exists()
    again = subprocess.run(command, capture_output=True, env=environment, timeout=300)
    assert again.returncode == 0, again.stderr.decode()
    (tmp_path / "whole").mkdir()
    whole = load(small(tmp_path / "whole", AUTO), [*changes[:2], "rounds=200", "engine.kind='local'"])
    one = cells(whole)[1][1]
    with Player(whole, player_federations(whole), NoAudience()) as alone:
        alone.play([PlannedRun(one.label, one.config, one.folder, one.display)])
    told = [json.loads((folder / "result.json").read_text())["digest"] for folder in (todo[1].folder, one.folder)]
    assert told[0] == told[1]
    assert top.name == cells(whole)[0].name  # how many at once is no part of what a comparison is


def test_runs_end_when_whoever_waits_for_them_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "from contextlib import nullcontext\n"
        "from fedquilt.studies.listening import Nobody\n"
        "from fedquilt.studies.side_by_side import side_by_side\n"
        "def play(what, listener):\n"
        "    for done in range(10**6):\n"
        "        time.sleep(0.02)\n"
        "        listener.round(done, {})\n"
        "        print(os.getpid(), flush=True) if done == 0 else None\n"
        "side_by_side([1, 2], 2, play, lambda what: nullcontext(Nobody()))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "FEDQUILT_START"}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        children = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
    end = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in children)
