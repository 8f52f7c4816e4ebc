"""The kernels of a captured step behind shorter calls, and the same where they write into memory that they are
given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_SAME = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "t",
    "relu",
    "tanh",
    "sigmoid",
    "permute",
    "as_strided",
    "unsqueeze",
    "clone",
    "convolution",
    "_log_softmax",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "index_select",
)
QUICK: dict[object, Callable[..., Any]] = {  # the same kernels behind a shorter call, with the same arguments
    **{getattr(_aten, name).default: getattr(torch, name) for name in _SAME},
    **{getattr(_aten, name).Tensor: getattr(torch, name) for name in ("add", "sub", "mul", "div")},
    _aten.sum.dim_IntList: torch.sum,
    _aten.transpose.int: torch.transpose,
    _aten.select.int: torch.select,
    _aten.view.default: Tensor.view,
    _aten.expand.default: Tensor.expand,
    _aten.new_zeros.default: Tensor.new_zeros,
    _aten.add_.Tensor: Tensor.add_,
    _aten.copy_.default: Tensor.copy_,
    _aten._unsafe_view.default: Tensor.view,
    _aten.empty.memory_format: torch.empty,
    _aten.max_pool2d_with_indices.default: torch._C._nn.max_pool2d_with_indices,
    _aten.avg_pool2d.default: torch._C._nn.avg_pool2d,
    _aten.gelu.default: torch._C._nn.gelu,
}

_OUT = (
    *(
        getattr(_aten, name).default
        for name in (
            "mm",
            "bmm",
            "addmm",
            "baddbmm",
            "index_select",
            "tanh",
            "sigmoid",
            "_log_softmax",
            "_log_softmax_backward_data",
            "max_pool2d_with_indices",
            "avg_pool2d",
            "gelu",
        )
    ),
    *(getattr(_aten, name).Tensor for name in ("add", "sub", "mul", "div")),
    _aten.sum.dim_IntList,
)
INTO: dict[
    object, tuple[Callable[..., Any], str]
] = {  # the same kernels where they write into memory they are given: how to call them
    **{kernel: (QUICK[kernel], "{args}, out={out}") for kernel in _OUT},
    **{
        getattr(_aten, name).default: (getattr(_aten, name).grad_input._op, "{args}, grad_input={out}")
        for name in (
            "threshold_backward",
            "tanh_backward",
            "sigmoid_backward",
            "max_pool2d_with_indices_backward",
            "avg_pool2d_backward",
        )
    },
    _aten.relu.default: (torch.clamp_min, "{args}, 0, out={out}"),
    _aten.clone.default: (Tensor.copy_, "{out}, {first}"),
    _aten.new_zeros.default: (Tensor.zero_, "{out}"),
}
