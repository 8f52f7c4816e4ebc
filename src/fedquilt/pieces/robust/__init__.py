"""Aggregators for cohorts in which some clients are malicious.

Every rule counts clients by their samples where that is defined, and all the same with ``by_samples=False``.
"""

from fedquilt.pieces.robust.before import arc, bucketing, nearest_mixing
from fedquilt.pieces.robust.by_coordinate import bulyan, meamed, median, trimmed_mean
from fedquilt.pieces.robust.by_reply import centred_clip, clip_norm, fltrust, geometric_median, krum, multi_krum
from fedquilt.pieces.robust.trusted import learned_on

__all__ = [
    "arc",
    "bucketing",
    "bulyan",
    "centred_clip",
    "clip_norm",
    "fltrust",
    "geometric_median",
    "krum",
    "learned_on",
    "meamed",
    "median",
    "multi_krum",
    "nearest_mixing",
    "trimmed_mean",
]
