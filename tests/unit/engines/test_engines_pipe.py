"""Messages between processes: long bytes travel beside the record and arrive in their places."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest
import torch

from fedquilt.engines import pipe
from fedquilt.engines.pipe import Pipe
from fedquilt.engines.worker import Done
from fedquilt.errors import FrameError, InputError
from fedquilt.records.record import pack
from fedquilt.rounds.client import Outcome


@pytest.fixture(params=["socket", "blocks"])
def ends(request):
    pair = socket.socketpair()
    here, there = Pipe(pair[0]), Pipe(pair[1])
    if request.param == "blocks":
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
    frame = (100).to_bytes(8, "little") + bytes(32) + b"short"
    door.sendall(frame)
    door.close()
    with pytest.raises(EOFError):
        receiver.receive()


def test_noise_is_not_taken_for_a_message(ends):
    ends[1].sendall(b"\xff" * 64)
    with pytest.raises(FrameError, match="out of step"):
        ends[2].receive()


def test_both_directions_have_blocks_of_their_own(ends):
    here, _, there = ends
    asked, answer = Done(1, b"a" * 10_000), Done(2, b"b" * 9_000)
    assert passed(asked, (here, None, there)) == asked
    assert passed(answer, (there, None, here)) == answer
    assert passed(asked, (here, None, there)) == asked


@pytest.fixture
def pair():
    doors = socket.socketpair()
    here, there = Pipe(doors[0]), Pipe(doors[1])
    here.offer()
    there.accept()
    yield here, there
    here.close()
    there.close()


def test_long_bytes_do_not_wait_for_a_reader(pair):
    here, there = pair
    message = Done(1, b"a" * 5_000_000)  # far more than a socket holds
    here.send(message)
    assert there.receive() == message


def test_what_is_packed_into_room_is_read_where_it_is(pair):
    here, there = pair
    frame = here.room(10_000)
    frame[:] = b"a" * 10_000
    here.send(Done(1, frame))
    got = there.receive().result
    assert isinstance(got, memoryview)
    assert got == frame
    frame[:5] = b"later"  # the same memory
    assert bytes(got[:6]) == b"latera"


def test_a_block_is_filled_again_once_nobody_reads_it(pair):
    here, there = pair
    kept = []
    for number in range(4):
        here.send(Done(number, memoryview(bytearray([number]) * 9_000)))
        kept.append(torch.frombuffer(there.receive().result, dtype=torch.uint8)[10:])
        there.send(None)
        here.receive()
    assert [int(tensor.unique()) for tensor in kept] == [0, 1, 2, 3]  # what is kept stays as it was
    assert len(here._lender.sizes) == 4
    del kept[1:3]
    there.send(None)
    here.receive()
    for number in (7, 8):
        here.send(Done(number, memoryview(bytearray([number]) * 9_000)))
        kept.append(torch.frombuffer(there.receive().result, dtype=torch.uint8))
    assert len(here._lender.sizes) == 4
    assert [int(tensor.unique()) for tensor in kept] == [0, 3, 7, 8]


def test_room_that_is_never_sent_is_room_again(pair):
    here, _ = pair
    for _ in range(5):
        here.room(10_000)
    assert len(here._lender.sizes) == 1


def test_small_blocks_make_room_for_longer_ones(pair):
    here, there = pair
    for size in (5_000, 50_000, 20_000, 500_000):
        message = Done(size, bytes([size % 251]) * size)
        here.send(message)
        assert there.receive() == message
        there.send(None)
        here.receive()
    assert len(here._lender.sizes) == 1


def test_without_room_bytes_go_through_the_socket(monkeypatch):
    monkeypatch.setattr(pipe, "_ROOM", 2 * 2**14)
    doors = socket.socketpair()
    here, there = Pipe(doors[0]), Pipe(doors[1])
    here.offer()
    there.accept()
    got = []
    for number in range(4):
        here.send(Done(number, memoryview(bytearray([number]) * 10_000)))
        got.append(there.receive().result)
    assert [bytes(frame) for frame in got] == [bytes([number]) * 10_000 for number in range(4)]
    assert [isinstance(frame, memoryview) for frame in got] == [True, True, False, False]
    here.close()
    there.close()
    assert bytes(got[0]) == bytes(10_000)  # also when the pipe is gone


def test_a_part_of_a_block_is_sent_as_what_it_is(pair):
    here, there = pair
    frame = here.room(20_000)
    frame[:] = b"a" * 10_000 + b"b" * 10_000
    here.send(Done(1, frame[10_000:]))
    assert bytes(there.receive().result) == b"b" * 10_000


def test_bytes_outside_the_memory_are_refused(pair):
    here, there = pair
    here._lender.lent = lambda part: pipe._ROOM - 10
    here.send(Done(1, b"a" * 5_000))
    with pytest.raises(FrameError, match="out of step: 5000 bytes at"):
        there.receive()


def test_places_in_memory_that_is_not_shared_are_refused(pair):
    here, there = pair
    there._borrower = None
    here.send(Done(1, b"a" * 5_000))
    with pytest.raises(FrameError, match="where nothing is shared"):
        there.receive()


def test_blocks_that_nobody_lent_are_not_taken_back(pair):
    here, there = pair
    there._borrower.read.append(3)
    there.send(None)
    with pytest.raises(FrameError, match="were given back"):
        here.receive()


def test_a_message_may_wait_for_those_before_it(pair):
    """Two jobs are under way while two answers are."""
    here, there = pair
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


@pytest.mark.parametrize("blocks", [True, False])
def test_what_would_wait_for_a_busy_side_is_not_sent_ahead(pair, blocks, monkeypatch):
    monkeypatch.setattr(pipe, "_APART", 10_000)
    here, there = pair
    if not blocks:
        here._lender = None
    assert not here.send_ahead(Done(1, b"a" * 20_000))
    assert not here.send_ahead(Done(2, [b"a" * 1_000] * 40))  # many short ones make a long record
    assert here.send_ahead(Done(3, b"a" * 5_000)) is blocks
    assert here.send_ahead(Done(4, "short"))
    assert there.receive().number == (3 if blocks else 4)


def test_many_blocks_are_one_file(pair):
    here, there = pair
    before, kept = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0, []
    for number in range(40):
        here.send(Done(number, memoryview(bytearray([number]) * 9_000)))
        kept.append(there.receive().result)
    assert [frame[0] for frame in kept] == list(range(40))
    assert not before or len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("head", [(2**62, 0, 0, 0, 0), (0, 1, 0, -1, 2**62), (0, 1, 0, -1, -5), (0, 1, 0, 64, -1)])
def test_sizes_that_no_message_has_are_refused(pair, head):
    here, there = pair
    here.sock.sendall(pipe._HEAD.pack(*head))
    with pytest.raises(FrameError, match="out of step"):
        there.receive()


@pytest.mark.parametrize(
    ("stands", "parts"),
    [
        ((pipe.FollowingBytes(-1),), 1),
        ((pipe.FollowingBytes(0), pipe.FollowingBytes(0)), 1),
        ((pipe.FollowingBytes(0),), 2),
    ],
)
def test_parts_belong_to_one_place_each(stands, parts):
    frame = pack(Done(1, stands), compact=True)
    with pytest.raises(FrameError):
        pipe._unpacked(frame, [b"a" * 5000] * parts)
    assert pipe._unpacked(pack(Done(1, pipe.FollowingBytes(0)), compact=True), [b"abc"]) == Done(1, b"abc")


def test_only_room_is_handed_over(pair):
    """What a program holds in memory of its own arrives as bytes, wherever in the record it is."""
    here, there = pair
    held = {"short": bytearray(100), "long": bytearray(5000), "bytes": bytes(5000)}
    here.send(Done(1, held))
    assert {name: type(part) for name, part in there.receive().result.items()} == dict.fromkeys(held, bytes)


def test_what_cannot_be_packed_is_named_beside_long_bytes(pair):
    here, _ = pair
    with pytest.raises(InputError, match="numpy array at '/result/1'"):
        here.send(Done(1, (here.room(5000), np.zeros(3))))
