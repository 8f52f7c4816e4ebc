"""Sparse changes on the wire: few numbers and where they are, in the smallest of four forms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.params import Names, Params, is_weight
from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs import sparse_values
from fedquilt.pieces.codecs.bits import Floats32, Ints, bytes_for, from_bits, to_bits, unpack_bits, width_of
from fedquilt.pieces.codecs.layout import Layout, layout_of, read, written
from fedquilt.pieces.codecs.sparse_values import Values
from fedquilt.records.declared import check_declared
from fedquilt.records.record import record

_BLOCK = 1 << 16  # numbers that are turned into bits at a time; a multiple of 8, so that blocks end at whole bytes


def write_bitmap(places: Ints, total: int) -> bytes:
    """One bit for each number."""
    bits = np.zeros(total, dtype=np.uint8)
    bits[places] = 1
    return np.packbits(bits).tobytes()


def read_bitmap(raw: bytes, total: int) -> Ints:
    """The places that :func:`write_bitmap` wrote."""
    if len(raw) != bytes_for(total):
        raise FrameError(f"a bitmap of {total} numbers takes {bytes_for(total)} bytes, got {len(raw)}. Truncated?")
    found = np.flatnonzero(np.unpackbits(np.frombuffer(raw, dtype=np.uint8)))
    if len(found) and found[-1] >= total:
        raise FrameError("the filling of a bitmap is not zero.")
    return found


def write_numbers(numbers: Ints, width: int) -> bytes:
    """Numbers of equal width, one after the other."""
    blocks = (numbers[low : low + _BLOCK] for low in range(0, len(numbers), _BLOCK))
    return b"".join(np.packbits(to_bits(block, width)).tobytes() for block in blocks) if width else b""


def read_numbers(raw: bytes, count: int, width: int) -> Ints:
    """The numbers that :func:`write_numbers` wrote."""
    if len(raw) != bytes_for(count * width):
        raise FrameError(f"{count} numbers of {width} bits take {bytes_for(count * width)} bytes, got {len(raw)}.")
    if not width:
        return np.zeros(count, dtype=np.int64)
    found, step = [np.zeros(0, dtype=np.int64)], bytes_for(_BLOCK * width)
    for low in range(0, count, _BLOCK):
        piece = np.frombuffer(raw, dtype=np.uint8)[low // _BLOCK * step :][:step]
        found.append(from_bits(np.unpackbits(piece)[: min(_BLOCK, count - low) * width], width).astype(np.int64))
    return np.concatenate(found)


def write_list(places: Ints, total: int) -> bytes:
    """Each place in ceil(log2 P) bits."""
    return write_numbers(places, width_of(total))


def read_list(raw: bytes, count: int, total: int) -> Ints:
    """The places that :func:`write_list` wrote."""
    found = read_numbers(raw, count, width_of(total))
    if count and (found[-1] >= total or bool((np.diff(found) <= 0).any())):
        raise FrameError("places must rise and be inside the tensors.")
    return found


def golomb_step(places: Ints, total: int) -> tuple[int, int]:
    """The step with which the gaps between places take the fewest bits, and how many bytes those are."""
    gaps = _gaps(places)
    if not len(gaps):
        return 1, 0
    share = len(gaps) / total
    best = math.ceil(math.log(2 - share) / -math.log1p(-share)) if share < 1 else 1  # Gallager and van Voorhis 1975
    sizes = {step: _places_size(gaps, step) for step in {max(best - 1, 1), best, best + 1}}
    step = min(sizes, key=lambda m: (sizes[m], m))
    return step, sizes[step]


def write_gaps(places: Ints, step: int) -> bytes:
    """Golomb code of the gaps: quotients in unary, all of them first; then the remainders in truncated binary, all
    leading bits before all last bits, so that each part has entries of one width."""
    gaps = _gaps(places)
    ends = np.cumsum(gaps // step + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
    unary[ends] = 1
    rest, (width, short) = gaps % step, _truncated(step)
    long = rest >= short
    lead = np.where(long, (rest + short) >> 1, rest)
    last = ((rest + short) & 1)[long].astype(np.uint8) if width else np.zeros(0, dtype=np.uint8)
    return np.packbits(unary).tobytes() + write_numbers(lead, max(width - 1, 0)) + np.packbits(last).tobytes()


def read_gaps(raw: bytes, count: int, step: int, total: int) -> Ints:
    """The places that :func:`write_gaps` wrote."""
    if not 1 <= step <= max(total, 1) + 1:
        raise FrameError(f"gaps in steps of {step} among {total} numbers.")
    bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8))
    ends = np.flatnonzero(bits)[:count]
    if len(ends) < count:
        raise FrameError(f"{count} gaps were announced, {len(ends)} came.")
    high = np.diff(ends, prepend=-1) - 1
    (width, short), at = _truncated(step), bytes_for(int(ends[-1]) + 1) if count else 0
    middle = at + bytes_for(count * max(width - 1, 0))
    lead = read_numbers(raw[at:middle], count, max(width - 1, 0))
    long = np.flatnonzero(lead >= short) if width else np.zeros(0, dtype=np.int64)
    last = unpack_bits(raw[middle:], len(long))
    lead[long] = (lead[long] << 1) + last - short
    if count and (int(high.max()) * step > total or int(lead.max()) >= step):
        raise FrameError("a gap is longer than the tensors.")
    places = np.cumsum(high * step + lead + 1) - 1
    if count and int(places[-1]) >= total:
        raise FrameError("a place is outside the tensors.")
    return places


def _gaps(places: Ints) -> Ints:
    return np.diff(places, prepend=-1) - 1


def _truncated(step: int) -> tuple[int, int]:
    """Bits of the longer remainders, and how many remainders are one bit shorter."""
    width = width_of(step)
    return width, (1 << width) - step


def _places_size(gaps: Ints, step: int) -> int:
    quotients = gaps // step
    width, short = _truncated(step)
    long = int((gaps - quotients * step >= short).sum()) if width else 0
    lead = bytes_for(len(gaps) * max(width - 1, 0))
    return bytes_for(int(quotients.sum()) + len(gaps)) + lead + bytes_for(long)


FORMS = ("dense", "bitmap", "index", "coded")
Form = Literal["smallest", "dense", "bitmap", "index", "coded"]


@record
class SparseWire:
    """Named tensors of which most numbers are 0.

    Args:
        layout: Names and shapes, or which of those that both sides hold.
        form: 'dense' holds every number; 'bitmap', 'index' and 'coded' hold the chosen ones and where they are.
        values: How a number is written.
        kept: How many were chosen.
        step: Of the Golomb code; negative if it tells who was not chosen, 0 in other forms.
        places, numbers, scales: The content.
        rest: Tensors that are no weights, as they are.
    """

    layout: int | bytes
    form: str
    values: str
    kept: int
    step: int
    places: bytes
    numbers: bytes
    scales: bytes
    rest: Params


@dataclass(frozen=True)
class sparse:
    """What is not 0 travels, and where it is. A chosen 0 is -0.0, see :func:`fedquilt.core.select.marked`.

    With fp32 numbers, nnz chosen of P: dense 32 P bits, bitmap P + 32 nnz, index nnz (ceil(log2 P) + 32), and coded
    nearly P H(nnz / P) + 32 nnz (a Golomb code of the gaps). The smallest is taken.

    Args:
        values: 'fp32' is exact; 'fp16' halves the numbers, scaled by a power of two; 'sign' is one bit for each and the
            mean size of each tensor's chosen numbers.
        form: To insist on one form.
        only: The names that are sparse; others travel as they are.
    """

    values: Values = "fp32"
    form: Form = "smallest"
    only: Names = is_weight

    def __post_init__(self) -> None:
        sparse_values.check(self.values)
        if self.form not in ("smallest", *FORMS):
            raise InputError(f"form must be smallest or one of {', '.join(FORMS)}, got {self.form!r}.")

    def encode(self, upload: Params, sent: object, memory: object, seed: Seed) -> tuple[object, object]:
        """The wire form."""
        names = self._names(layout_of(upload))
        flat = _flat(upload, names)
        places = np.flatnonzero(_bits(flat))
        runs = _runs(places, [upload[n].numel() for n in names])
        form, step = self._choose(places, len(flat))
        numbers = flat if form == "dense" and self.values != "sign" else flat[places]
        body, scales = sparse_values.write(numbers, self.values, runs)
        if form == "dense" and self.values == "fp16":
            body = _still_chosen(body, places)
        where = _where(form, places, len(flat), step)
        rest = {n: t for n, t in upload.items() if n not in set(names)}
        made = (written(layout_of(upload), sent), form, self.values, len(places), step, where, body, scales, rest)
        return SparseWire(*made), memory

    def decode(self, wire: object, sent: object) -> Params:
        """Named tensors again."""
        if not isinstance(wire, SparseWire) or wire.form not in FORMS or wire.values not in sparse_values.KINDS:
            raise FrameError("this is no sparse change of a known form.")
        check_declared(wire, SparseWire, "a sparse change")
        if wire.step and wire.form != "coded":
            raise FrameError(f"a change of the form '{wire.form}' has no steps, got {wire.step}.")
        layout = read(wire.layout, sent)
        names = self._names(layout)
        sizes = [_size(layout, n) for n in names]
        flat = _content(wire, sum(sizes), sizes)
        found, at = dict(wire.rest), 0
        for name, size in zip(names, sizes, strict=True):
            found[name] = torch.from_numpy(flat[at : at + size]).reshape(_shape(layout, name)).clone()
            at += size
        if set(found) != set(layout.names):
            raise FrameError("the tensors that came are not those of the layout.")
        return {str(n): found[str(n)] for n in layout.names}

    def _names(self, layout: Layout) -> list[str]:
        """The sparse names: weights in float32."""
        found = []
        for name, dtype in zip(layout.names, layout.dtypes, strict=True):
            if name is None:
                raise InputError("sparse takes named tensors, got one alone.")
            if self.only(name) and dtype.is_floating_point:
                if dtype != torch.float32:
                    raise InputError(f"sparse carries float32 numbers, but '{name}' is {dtype}.")
                found.append(name)
        return found

    def _choose(self, places: Ints, total: int) -> tuple[str, int]:
        inverted = 2 * len(places) > total
        step, size = golomb_step(_others(places, total) if inverted else places, total)
        chosen_ones = sparse_values.size_of(self.values, len(places))
        sizes = {
            "dense": sparse_values.size_of(self.values, total),
            "bitmap": bytes_for(total) + chosen_ones,
            "index": bytes_for(len(places) * width_of(total)) + chosen_ones,
            "coded": size + chosen_ones,
        }
        if self.values == "sign" and len(places) < total:
            del sizes["dense"]  # one bit has no room for 'not chosen'
        if self.form != "smallest":
            if self.form not in sizes:
                raise InputError("form 'dense' with values 'sign' needs every number to be chosen.")
            sizes = {self.form: sizes[self.form]}
        form = min(sizes, key=lambda f: (sizes[f], FORMS.index(f)))
        return form, (-step if inverted else step) if form == "coded" else 0


def _flat(params: Params, names: list[str]) -> Floats32:
    parts: list[Tensor] = [params[n].detach().flatten() for n in names]
    return torch.cat(parts).numpy() if parts else np.zeros(0, dtype=np.float32)


def _bits(flat: Floats32) -> NDArray[np.uint32]:
    return flat.view(np.uint32)  # only +0.0 is all zeros


def _runs(places: Ints, sizes: list[int]) -> list[int]:
    ends = np.searchsorted(places, np.cumsum(sizes))
    return [int(n) for n in np.diff(ends, prepend=0)]


def _others(places: Ints, total: int) -> Ints:
    mask = np.ones(total, dtype=bool)
    mask[places] = False
    return np.flatnonzero(mask)


def _where(form: str, places: Ints, total: int, step: int) -> bytes:
    if form == "dense":
        return b""
    if form == "bitmap":
        return write_bitmap(places, total)
    if form == "index":
        return write_list(places, total)
    return write_gaps(_others(places, total) if step < 0 else places, abs(step))


def _places(wire: SparseWire, total: int) -> Ints:
    if wire.form == "bitmap":
        found = read_bitmap(wire.places, total)
    elif wire.form == "index":
        found = read_list(wire.places, wire.kept, total)
    else:
        inverted = wire.step < 0
        count = total - wire.kept if inverted else wire.kept
        found = read_gaps(wire.places, count, abs(wire.step), total)
        found = _others(found, total) if inverted else found
    if len(found) != wire.kept:
        raise FrameError(f"{wire.kept} numbers were announced, {len(found)} places came.")
    return found


def _content(wire: SparseWire, total: int, sizes: list[int]) -> Floats32:
    if type(wire.kept) is not int or not 0 <= wire.kept <= total or type(wire.step) is not int:
        raise FrameError(f"{wire.kept!r} of {total} numbers were chosen.")
    if wire.form == "dense":
        if wire.places or (wire.values == "sign" and wire.kept != total):
            raise FrameError("a dense change has no places.")
        whole = sparse_values.read(wire.numbers, wire.scales, wire.values, sizes)
        return np.where(whole == 0, np.float32(-0.0), whole) if wire.values == "sign" else whole
    places = _places(wire, total)
    numbers = sparse_values.read(wire.numbers, wire.scales, wire.values, _runs(places, sizes))
    flat = np.zeros(total, dtype=np.float32)
    flat[places] = np.where(numbers == 0, np.float32(-0.0), numbers)
    return flat


def _still_chosen(body: bytes, places: Ints) -> bytes:
    """Chosen numbers that half precision rounded to 0 stay chosen."""
    halves = np.frombuffer(body, dtype="<u2").copy()
    vanished = places[halves[places] == 0]
    halves[vanished] = 0x8000
    return halves.tobytes()


def _size(layout: Layout, name: str) -> int:
    return int(np.prod(_shape(layout, name), dtype=np.int64))


def _shape(layout: Layout, name: str) -> tuple[int, ...]:
    return layout.shapes[layout.names.index(name)]
