"""A Flower grid with nodes that lie, fail, vanish and come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fedquilt.engines.flower.apps import FlowerClient
from fedquilt.engines.flower.inprocess import InProcess
from fedquilt.engines.flower.jobs import Answer
from fedquilt.records.record import pack, unpack
from helpers.nodes import grid

Frames = dict[str, bytes]
Tamper = Callable[[Frames], Frames]


def tampered(federation: Any, node: int, tamper: Tamper, kind: str = "train.", **settings: Any) -> InProcess:
    """A grid of which one node changes its answers to messages of a kind."""
    over = grid(federation, **settings)
    honest = over.nodes[node].serve

    def serve(asked: str, frames: Frames, context: Any) -> Frames:
        answer = honest(asked, frames, context)
        return tamper(answer) if asked.startswith(kind) else answer

    over.nodes[node] = FlowerClient(serve)
    return over


def answer(change: Callable[[Answer], Any]) -> Tamper:
    """Change the record of the answer."""
    return lambda frames: {**frames, "answer": pack(change(unpack(frames["answer"])), compact=True)}


def results(change: Callable[[list[Any]], list[Any]]) -> Tamper:
    """Change the results."""
    return answer(lambda found: replace(found, results=change(list(found.results))))


def each(**fields: Any) -> Tamper:
    """Change fields of each result."""
    return results(lambda found: [replace(r, **fields) for r in found])


def uploads(change: Callable[[bytes], bytes]) -> Tamper:
    """Change the frames of the uploads."""
    return lambda frames: {n: change(f) if n.startswith("frame-") else f for n, f in frames.items()}


def in_turn(*tampers: Tamper) -> Tamper:
    """Change the upload of the first result as the first of these does, that of the second as the second, ..."""

    def change(frames: Frames) -> Frames:
        changed = dict(frames)
        for result, tamper in zip(unpack(frames["answer"]).results, tampers, strict=True):
            name = f"frame-{result.up}"
            changed |= tamper({name: frames[name]})
        return changed

    return change


def wire(change: Callable[[Any], Any]) -> Tamper:
    """Change the record of each upload."""
    return uploads(lambda frame: pack(change(unpack(frame)), compact=True))


def flip(frame: bytes) -> bytes:
    """A bit of the header is wrong."""
    return frame[:9] + bytes([frame[9] ^ 4]) + frame[10:]


def spoilt(value: float) -> Tamper:
    """All numbers of each upload are this one."""

    def change(found: Any) -> Any:
        def spoil(delta: Any) -> Any:
            return {n: torch.full_like(t, value) for n, t in delta.items()}

        field = next(iter(vars(found.upload)))
        return replace(found, upload=replace(found.upload, **{field: spoil(getattr(found.upload, field))}))

    return wire(change)
