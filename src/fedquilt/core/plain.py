"""Plain values: what a JSON or TOML file can say, and so what logs, results, settings and reports consist of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

JSON: TypeAlias = Any  # None, a bool, a number, a text, a list or a Row; whoever reads a field knows which of them
Row: TypeAlias = dict[str, JSON]
Array: TypeAlias = NDArray[Any]  # of any type of number
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
