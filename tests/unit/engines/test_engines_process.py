"""Worker processes: forked where that is safe, started anew elsewhere; the numbers are the same."""

import fcntl
import os
import subprocess
import sys
import threading
import time

import pytest

from fedquilt.engines.process import Forked, forks
from fedquilt.engines.workers import Workers
from helpers.toy import fedavg, last, points

TOY = points(10, 30, 20)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_both_starts_give_the_same_bits(start, monkeypatch):
    monkeypatch.setenv("FEDQUILT_START", start)
    with Workers(1) as engine:
        found = last(fedavg(), TOY, rounds=2, engine=engine).digest()
        kind = type(engine._workers[0].process)
    assert kind is (Forked if start == "fork" and threading.active_count() == 1 else subprocess.Popen)
    assert found == last(fedavg(), TOY, rounds=2).digest()


def test_no_fork_beside_another_thread_or_with_a_device():
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert not forks(None)
    finally:
        over.set()
        thread.join()
    assert not forks("cuda:0")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
def test_a_forked_process_holds_none_of_its_parents_files(tmp_path):
    """A lock that a child kept would outlive its holder."""
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reader, writer = os.pipe()
        child = Forked(lambda: time.sleep(60), writer)
        os.close(writer)
    try:
        for _ in range(200):
            with (tmp_path / "lock").open("w") as again:
                try:
                    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    time.sleep(0.05)
        else:
            pytest.fail("the child kept the lock")
        assert child.poll() is None
    finally:
        child.kill()
        assert child.wait() == -9
        os.close(reader)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
def test_the_end_of_a_forked_process_is_told():
    assert Forked(lambda: None, 2).wait(timeout=20) == 0
    assert Forked(lambda: os._exit(3), 2).wait() == 3
    slow = Forked(lambda: time.sleep(60), 2)
    with pytest.raises(subprocess.TimeoutExpired):
        slow.wait(timeout=0.05)
    slow.kill()
    assert slow.wait() == -9


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
def test_a_process_whose_end_somebody_else_saw_has_ended():
    """Programs that ignore SIGCHLD never learn how their children ended."""
    child = Forked(lambda: None, 2)
    os.waitpid(child.pid, 0)
    assert child.wait(timeout=5) == 0
    assert child.poll() == 0
