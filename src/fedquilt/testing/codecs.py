"""What every codec promises, one function for each property."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from itertools import product
from unittest import SkipTest

import torch
from torch import Tensor

from fedquilt.core.describe import build, describe
from fedquilt.core.exchange import Codec
from fedquilt.core.params import finite
from fedquilt.core.seed import Seed
from fedquilt.errors import FedquiltError
from fedquilt.methods.fedavg import Download, Upload
from fedquilt.records.limits import upload_limits
from fedquilt.records.record import pack, tensors_in, unpack
from fedquilt.testing.by_hand import mark
from fedquilt.testing.checks import Check, CheckReport, Problems, report_of
from fedquilt.testing.faults import CORRUPTIONS
from fedquilt.testing.spoiling import KINDS, paths, spoilt
from fedquilt.testing.toy import network

GARBAGE = (None, 3, -0.5, "garbage", b"\xff\x00", (), [b""], {"stray": torch.zeros(2)})


@dataclass(frozen=True)
class CodecTrial:
    """A codec on trial: it, a message, and what both sides hold of it."""

    codec: Codec
    upload: object
    sent: object

    @cached_property
    def coded(self) -> tuple[object, object]:
        """What travels, and what the codec remembers."""
        return self.encoded()

    def encoded(self, upload: object = None, memory: object = None, seed: int = 0) -> tuple[object, object]:
        """A message coded: by default the one on trial, for the first time."""
        return self.codec.encode(self.upload if upload is None else upload, self.sent, memory, Seed(seed))

    def decoded(self, wire: object) -> object:
        """What the other side sees."""
        return self.codec.decode(wire, self.sent)


def message() -> tuple[Upload, Download]:
    """An upload of FedAvg, with a counter such as BatchNorm's and a column that is all zero, and its download."""
    shared = {**network().init(Seed(0)), "rows": torch.tensor(7)}
    draw = Seed(1).torch()
    delta = {n: torch.randn(t.shape, generator=draw) if t.is_floating_point() else t for n, t in shared.items()}
    weight = next(t for t in delta.values() if t.dim() > 1)
    weight[:, 0] = 0
    return Upload(delta), Download(shared)


def form(value: object) -> object:
    """The types, names, shapes and dtypes of a message, without its numbers."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, dict):
        return {name: form(inner) for name, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), {field.name: form(getattr(value, field.name)) for field in fields(value)}
    return type(value), None


def keeps_the_form(trial: CodecTrial) -> Problems:
    """What comes out has the types, names, shapes and dtypes of what went in, and is finite."""
    found = trial.decoded(trial.coded[0])
    if form(found) != form(trial.upload):
        yield f"It makes {form(found)} of {form(trial.upload)}."
    if not finite(tensors_in(found)):
        yield "It makes numbers that are not finite of numbers that are."


def same_wire_again(trial: CodecTrial) -> Problems:
    """Equal messages, memories and seeds give equal bytes, and equal bytes equal messages."""
    wire = trial.coded[0]
    if pack(trial.encoded()[0]) != pack(wire):
        yield "Coded twice with one seed, a message differs. Take all randomness from the seed that is given."
    if pack(trial.decoded(wire)) != pack(trial.decoded(wire)):
        yield "Decoded twice, a message differs."


def same_elsewhere(trial: CodecTrial) -> Problems:
    """Rebuilt from its description, as in another process, it gives equal bytes."""
    again = CodecTrial(build(describe(trial.codec, "codec")), trial.upload, trial.sent)
    if pack(again.coded[0]) != pack(trial.coded[0]):
        yield "Rebuilt from its description it gives other bytes. Keep all settings in fields of a frozen dataclass."


def travels(trial: CodecTrial) -> Problems:
    """What travels and what is remembered are records: after a frame of either kind they are decoded the same."""
    wire, memory = trial.coded
    expected = pack(trial.decoded(wire))
    for compact in (True, False):
        if pack(trial.decoded(unpack(pack(wire, compact=compact)))) != expected:
            yield f"After a {'compact ' if compact else ''}frame, the message is another one."
    if pack(unpack(pack(memory))) != pack(memory):
        yield "Its memory does not survive packing."


def changes_no_argument(trial: CodecTrial) -> Problems:
    """Messages, memories and what was sent stay as they are."""
    yield from _changed("encode", lambda: trial.coded, upload=trial.upload, sent=trial.sent)
    wire, memory = trial.coded
    yield from _changed("encode", lambda: trial.encoded(memory=memory), memory=memory)
    yield from _changed("decode", lambda: trial.decoded(wire), wire=wire, sent=trial.sent)


def _changed(what: str, function: Callable[[], object], **given: object) -> Problems:
    before = {name: mark(value) for name, value in given.items()}
    function()
    for name, value in given.items():
        if mark(value) != before[name]:
            yield f"{what} changes its argument '{name}'. Return new records instead."


def remembers(trial: CodecTrial) -> Problems:
    """With the memory of the client updates before it, a message is still one; with none, as of a new client, too."""
    memory = trial.coded[1]
    if memory is None and getattr(trial.codec, "needs_memory", False):
        yield "It says that it needs a memory, but encode gives none."
        return
    if memory is None:
        raise SkipTest("it has no memory")
    for update in range(1, 4):
        wire, memory = trial.encoded(memory=unpack(pack(memory)), seed=update)
        if form(trial.decoded(wire)) != form(trial.upload):
            yield f"With the memory of {update} client updates, the message has another form."


def stays_within_limits(trial: CodecTrial) -> Problems:
    """A server accepts the frame: so many bytes, values and names."""
    try:
        unpack(pack(trial.coded[0], compact=True), limits=upload_limits(len(pack(trial.sent))))
    except FedquiltError as error:
        yield f"The server would refuse it: {error}"


def shows_what_is_not_finite(trial: CodecTrial) -> Problems:
    """NaN can be coded, and is then refused or still there: a client that diverged is not taken for a sound one."""
    if not any(t.is_floating_point() for t in tensors_in(trial.upload)):
        raise SkipTest("the message has no numbers that could be NaN")
    wire, _ = trial.encoded(CORRUPTIONS["nan"](trial.upload))
    try:
        found = trial.decoded(wire)
    except FedquiltError:
        return
    if finite(tensors_in(found)):
        yield "It makes finite numbers of NaN. Let decode raise a FrameError, or leave NaN in the message."


def refuses_garbage(trial: CodecTrial) -> Problems:
    """What nobody coded is refused with a FedquiltError, or passed on as it is for the exchange to refuse."""
    for wire in GARBAGE:
        if form(wire) != form(trial.coded[0]):
            yield from _refused(trial, repr(wire), wire, form(trial.upload))
    for what, damaged in _damaged(trial.coded[0]):
        yield from _refused(trial, what, damaged)


def _refused(trial: CodecTrial, what: str, wire: object, never: object = None) -> Problems:
    """What is wrong with the answer to garbage; ``never`` is a form that it may not be given."""
    try:
        found = trial.decoded(wire)
    except FedquiltError:
        return
    except Exception as error:
        yield f"{what}: decode raises {type(error).__name__}: {error}. Raise a FrameError."
        return
    if form(found) == never:
        yield f"{what}: decode makes a message of it. Raise a FrameError."


def _damaged(wire: object) -> Iterator[tuple[str, object]]:
    """What travels with one field spoilt, or with bytes cut or added."""
    ends = [path for path, end in paths(wire) if end]
    for path, (kind, change) in product(ends, {**KINDS, **_BYTES}.items()):
        yield f"{'.'.join(map(str, path))}: {kind}", spoilt(wire, path, change)


def _of_bytes(change: Callable[[bytes], bytes]) -> Callable[[object], object]:
    return lambda value: change(value) if isinstance(value, bytes) else value


_BYTES: dict[str, Callable[[object], object]] = {
    "cut": _of_bytes(lambda value: value[:-1]),
    "longer": _of_bytes(lambda value: value + b"\0"),
    "turned": _of_bytes(lambda value: bytes(255 - byte for byte in value)),
}

PROPERTIES: tuple[Callable[[CodecTrial], Problems], ...] = (
    changes_no_argument,  # first, before others call it
    keeps_the_form,
    same_wire_again,
    same_elsewhere,
    travels,
    remembers,
    stays_within_limits,
    shows_what_is_not_finite,
    refuses_garbage,
)


def _trial(codec: Codec, upload: object, sent: object) -> CodecTrial:
    return CodecTrial(codec, *message()) if upload is None else CodecTrial(codec, upload, sent)


def _checks(trial: CodecTrial) -> list[Check]:
    return [Check(p.__name__, partial(p, trial)) for p in PROPERTIES]


def checks_of_codec(codec: Codec, upload: object = None, sent: object = None) -> list[Check]:
    """Every check of a codec, for ``pytest.mark.parametrize``; arguments as in :func:`check_codec`."""
    return _checks(_trial(codec, upload, sent))


def check_codec(codec: Codec, upload: object = None, sent: object = None) -> CheckReport:
    """Run every check of a codec.

    The report's ``facts`` have the ``bytes`` of the message's frame, and ``bytes_plain`` without the codec. If a check
    fails, an AssertionError names each that does and says what to look at.

    Args:
        codec: The codec.
        upload: A message that it can code; by default FedAvg's upload for a small network.
        sent: What both sides hold when the upload is sent: the download.

    Example:
        >>> from fedquilt.pieces.codecs import half, on
        >>> report = check_codec(on("delta", half()))
        >>> report.facts["bytes"] < 0.55 * report.facts["bytes_plain"]
        True
    """
    trial = _trial(codec, upload, sent)
    report = report_of(_checks(trial), type(codec).__name__)
    sizes = {"bytes": trial.coded[0], "bytes_plain": trial.upload}
    return replace(report, facts={name: len(pack(value, compact=True)) for name, value in sizes.items()})
