"""Messages between processes: long bytes travel beside the record and arrive in their places."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from fedquilt.core.errors import FrameError
from fedquilt.engines.client_side import Outcome
from fedquilt.engines.pipe import Pipe
from fedquilt.engines.worker import Done


@pytest.fixture(params=["socket", "files"])
def ends(request):
    pair = socket.socketpair()
    here, there = Pipe(pair[0]), Pipe(pair[1])
    if request.param == "files":
        here.offer()
        there.accept()
    yield here, pair[0], there
    here.close()
    there.close()


def passed(message, ends):
    sender = threading.Thread(target=ends[0].send, args=(message,))
    sender.start()
    got = ends[2].receive()
    sender.join()
    return got


@pytest.mark.parametrize("long", [0, 10, 4095, 4096, 3_000_000])
def test_frames_of_any_length_arrive(ends, long: int):
    whole = bytes(range(256)) * (long // 256 + 1)
    outcome = Outcome(whole[:long], whole[: long // 2], 0.5)
    assert passed(Done(3, outcome), ends) == Done(3, outcome)
    assert passed(Done(4, [outcome, outcome]), ends) == Done(4, [outcome, outcome])


def test_a_message_cut_short_is_the_end(ends):
    _, door, receiver = ends
    frame = b"\0" + (1).to_bytes(8, "little") + (100).to_bytes(8, "little") + b"short"
    door.sendall(frame)
    door.close()
    with pytest.raises(EOFError):
        receiver.receive()


def test_noise_is_not_taken_for_a_message(ends):
    ends[1].sendall(b"\xff" * 64)
    with pytest.raises(FrameError, match="out of step"):
        ends[2].receive()


def test_both_directions_have_a_file_of_their_own(ends):
    here, _, there = ends
    asked, answer = Done(1, b"a" * 10_000), Done(2, b"b" * 9_000)
    assert passed(asked, (here, None, there)) == asked
    assert passed(answer, (there, None, here)) == answer
    assert passed(asked, (here, None, there)) == asked


def test_long_bytes_do_not_wait_for_a_reader():
    pair = socket.socketpair()
    here, there = Pipe(pair[0]), Pipe(pair[1])
    here.offer()
    there.accept()
    message = Done(1, b"a" * 5_000_000)  # far more than a socket holds
    here.send(message)
    assert there.receive() == message
    here.close()
    there.close()


def test_bytes_that_were_announced_but_never_written_are_refused():
    pair = socket.socketpair()
    here, there = Pipe(pair[0]), Pipe(pair[1])
    here.offer()
    there.accept()
    here.send(Done(1, b"a" * 5_000))
    os.ftruncate(there._files[1], 10)
    with pytest.raises(FrameError, match="5000 bytes were announced, 10 are there"):
        there.receive()
    here.close()
    there.close()
