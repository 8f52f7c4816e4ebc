"""Every property of a codec: the library's keep it, and one that breaks it is found out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
import torch

from fedquilt.core.exchange import Codec
from fedquilt.methods.fedavg import Upload
from fedquilt.pieces.codecs import (
    chain,
    error_feedback,
    half,
    hgc,
    hgc_legacy,
    hgc_rc,
    lfsr,
    localized,
    on,
    power_sgd,
    qsgd,
    random_k,
    sign,
    sparse,
    top_k,
    uniform,
)
from fedquilt.records.record import record
from fedquilt.testing import check_codec, checks_of_codec

CODECS = [
    hgc(),
    hgc(lossless="adaptive"),
    hgc_rc(lossless="gaps"),
    hgc_legacy(64),
    sign(),
    top_k(0.1),
    random_k(0.2),
    uniform(4),
    qsgd(4),
    half(),
    power_sgd(2),
    error_feedback(top_k(0.1)),
    chain(top_k(0.1), half()),
    chain(hgc(), lfsr()),
    on("delta", sparse()),
    on("delta", localized(keep=0.5)),
]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: repr(codec).partition(" at 0x")[0])
def test_the_codecs_keep_every_promise(codec: Codec) -> None:
    report = check_codec(codec)
    assert set(report.named("skipped")) <= {"remembers"}
    assert report.facts["bytes"] < report.facts["bytes_plain"]


def test_a_codec_of_bytes_is_checked_with_bytes() -> None:
    assert check_codec(lfsr(), upload=b"abcdef" * 10).named("skipped") == ("remembers", "shows_what_is_not_finite")


CALLS = count()


@record
class Sent:
    data: Any


@dataclass(frozen=True)
class Broken:
    """A codec that does one thing it must not do."""

    what: str = ""

    @property
    def needs_memory(self) -> bool:
        return self.what == "forgets"

    def encode(self, upload: Any, sent: Any, memory: Any, seed: Any) -> Any:
        delta = {n: t.nan_to_num() if self.what == "hides NaN" else t for n, t in upload.delta.items()}
        if self.what == "draws by itself":
            delta["stray"] = torch.tensor(next(CALLS))
        if self.what == "writes":
            upload.delta["stray"] = torch.zeros(1)
        if self.what == "is long":
            delta = {str(n): torch.zeros(1) for n in range(2**16)}
        memory = {"keep": {1, 2}} if self.what == "remembers sets" else memory
        return Sent([replace(upload, delta=delta)]), memory

    def decode(self, wire: Any, sent: Any) -> Any:
        if self.what == "takes anything" and not isinstance(wire, Sent):
            return Upload(sent.shared)
        found = wire.data[0]
        if self.what == "loses a name":
            return replace(found, delta=dict(list(found.delta.items())[1:]))
        return found


@pytest.mark.parametrize(
    ("name", "what", "told"),
    [
        ("keeps_the_form", "loses a name", "It makes"),
        ("same_wire_again", "draws by itself", "Take all randomness from the seed"),
        ("travels", "remembers sets", "InputError"),
        ("changes_no_argument", "writes", "encode changes its argument 'upload'"),
        ("remembers", "forgets", "It says that it needs a memory"),
        ("stays_within_limits", "is long", "The server would refuse it: too large"),
        ("shows_what_is_not_finite", "hides NaN", "It makes finite numbers of NaN"),
        ("refuses_garbage", "", "decode raises AttributeError"),
        ("refuses_garbage", "takes anything", "'garbage': decode makes a message of it"),
    ],
)
def test_a_broken_promise_is_found(name: str, what: str, told: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_codec(Broken(what))
    assert f"failed  {name}" in str(caught.value)
    assert told in str(caught.value)


def test_a_codec_that_cannot_be_rebuilt_is_found() -> None:
    class Local(Broken):
        pass

    (check,) = [c for c in checks_of_codec(Local()) if c.name == "same_elsewhere"]
    with pytest.raises(Exception, match="another process cannot import"):
        check()
