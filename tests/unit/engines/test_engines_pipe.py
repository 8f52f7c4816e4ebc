"""Messages between processes: long bytes travel beside the record and arrive in their places."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from fedquilt.core.errors import FrameError
from fedquilt.engines import pipe
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
    for descriptor in there._in.descriptors:
        os.ftruncate(descriptor, 10)
    with pytest.raises(FrameError, match="5000 bytes were announced, 10 are there"):
        there.receive()
    here.close()
    there.close()


def test_a_message_may_wait_for_the_one_before_it():
    """Two jobs are under way while two answers are: each direction has two files, which take turns."""
    pair = socket.socketpair()
    here, there = Pipe(pair[0]), Pipe(pair[1])
    here.offer()
    there.accept()
    texts = [bytes([65 + n]) * (5_000 + n) for n in range(7)]
    here.send(Done(0, texts[0]))
    for number in range(6):
        assert here.send_ahead(Done(number + 1, texts[number + 1]))
        got = there.receive()
        assert (got.number, got.result) == (number, texts[number])
        there.send(Done(number, got.result[::-1]))
        if number:
            back = here.receive()
            assert (back.number, back.result) == (number - 1, texts[number - 1])  # one letter, so backwards is the same
    here.close()
    there.close()


@pytest.mark.parametrize("files", [True, False])
def test_what_would_wait_for_a_busy_side_is_not_sent_ahead(files, monkeypatch):
    monkeypatch.setattr(pipe, "_APART", 10_000)
    pair = socket.socketpair()
    here, there = Pipe(pair[0]), Pipe(pair[1])
    if files:
        here.offer()
        there.accept()
    assert not here.send_ahead(Done(1, b"a" * 20_000))
    assert not here.send_ahead(Done(2, [b"a" * 1_000] * 40))  # many short ones make a long record
    assert here.send_ahead(Done(3, b"a" * 5_000)) is files
    assert here.send_ahead(Done(4, "short"))
    assert there.receive().number == (3 if files else 4)
    here.close()
    there.close()
