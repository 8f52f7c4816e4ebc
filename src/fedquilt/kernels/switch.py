"""The one switch of this folder."""

from __future__ import annotations

import os


def enabled() -> bool:
    """Whether kernels of this folder are used: unless the environment says FEDQUILT_KERNELS=plain."""
    return os.environ.get("FEDQUILT_KERNELS") != "plain"
