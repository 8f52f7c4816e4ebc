"""Frames inside Flower's records: small ones together, large ones alone, and none that was damaged on its way."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fedquilt.engines.flower.content import from_content, to_content
from fedquilt.engines.flower.inprocess import coded
from fedquilt.errors import FrameError

SMALL = {"begin": b"abc", "jobs": bytes(2000), "frame-0": b""}
LARGE = {"frame-1": bytes(range(256)) * 400, "frame-2": b"x" * (2**16 + 1)}


def sent(frames):
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    return Message(to_content(frames), dst_node_id=1, message_type="train.train")


@pytest.mark.parametrize("frames", [SMALL, LARGE, {**SMALL, **LARGE}, {}], ids=["small", "large", "both", "none"])
def test_frames_arrive(frames):
    assert from_content(coded(sent(frames)).content) == frames


def test_small_frames_are_one_object_and_large_ones_their_own():
    """Each object is a request at every station: the message, its content, and the record of small frames."""
    assert len(get_all_nested_objects(sent({f"frame-{n}": bytes([n]) * 100 for n in range(100)}))) == 3
    assert len(get_all_nested_objects(sent({"frame-0": bytes(10**5)}))) == 6  # an array record, an array, a piece
    many = {f"frame-{n}": bytes([n]) * 60_000 for n in range(40)}
    together = to_content(many)["fedquilt.small"]
    assert sum(map(len, together.values())) < 2**20 + 2**10
    assert from_content(to_content(many)) == many


@pytest.mark.parametrize("place", [0, 1, 777, -1])
@pytest.mark.parametrize("name", ["jobs", "frame-1"])
def test_a_flipped_bit_anywhere_is_noticed(name, place):
    content = to_content({**SMALL, **LARGE})
    frame = bytearray({**SMALL, **LARGE}[name])
    frame[place] ^= 16
    if name in content["fedquilt.small"]:
        content["fedquilt.small"][name] = bytes(frame)
    else:
        content["fedquilt"][name] = Array("uint8", (len(frame),), "fedquilt.frame", bytes(frame))
    with pytest.raises(FrameError, match=f"damaged message: '{name}' does not have the checksum"):
        from_content(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (RecordDict({}), "it has no records"),
        (RecordDict({"fedquilt": ArrayRecord({})}), "it has no records"),
        (RecordDict({"fedquilt.small": ConfigRecord({}), "fedquilt": ConfigRecord({})}), "it has no records"),
        (RecordDict({"fedquilt.small": ConfigRecord({"answer": 3})}), "'answer' is no frame"),
        (RecordDict({"fedquilt.small": ConfigRecord({"answer": b"abc"})}), "damaged message: 'answer'"),
        (RecordDict({"fedquilt.small": ConfigRecord({"answer": b"a", "sum.answer": "text"})}), "damaged message"),
        (
            RecordDict(
                {
                    "fedquilt.small": ConfigRecord({}),
                    "fedquilt": ArrayRecord({"a": Array("uint8", (4,), "fedquilt.frame", b"abc")}),
                }
            ),
            "'a' is no frame",
        ),
    ],
)
def test_what_is_no_message_of_ours_is_refused(content, words):
    with pytest.raises(FrameError, match=words):
        from_content(content)
