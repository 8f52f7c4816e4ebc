"""Peak memory, and the tensors alive."""

from __future__ import annotations

import torch

from fedquilt.metrics.memory import live_tensors, memory


def bytes_now() -> tuple[int, int]:
    found = live_tensors().get("cpu", {"tensors": 0, "bytes": 0})
    return found["tensors"], found["bytes"]


def test_shared_memory_counts_once_gradients_too_and_sizes_in_blocks_of_512() -> None:
    count, size = bytes_now()
    first = torch.zeros(1000)  # 4000 bytes, 8 blocks
    views = [first[:10], first.view(10, 100)]
    weight = torch.ones(3, requires_grad=True)  # a block, and one for its gradient
    weight.sum().backward()
    now = bytes_now()
    assert now[1] - size == 4096 + 512 + 512
    assert now[0] - count >= 5
    del first, views, weight


def test_the_peak_is_at_least_what_is_held() -> None:
    held = torch.ones(10**6)
    assert memory()["peak_resident_bytes"] > held.nbytes


def test_tensors_without_memory_count_for_nothing():
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
            raise NotImplementedError

    held = torch.Tensor._make_wrapper_subclass(Wrapper, (1000,))
    before = live_tensors()
    assert before == live_tensors()
    del held
