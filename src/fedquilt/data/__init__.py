"""Who has which data: federations, ways to divide a data set, and data sets by name."""

from typing import TYPE_CHECKING, Any

from fedquilt.data.federation import Federation
from fedquilt.data.imports import Words
from fedquilt.data.look import Majority
from fedquilt.data.npz import Arrays
from fedquilt.data.partitions.class_groups import ClassGroups, Pathological
from fedquilt.data.partitions.labels import IID, Dirichlet, DirichletPerClient, Partition, Shards
from fedquilt.data.partitions.legacy import DirichletChoice, DirichletCuts, TruncatedPerClient
from fedquilt.data.partitions.long_tail import (
    ClassTiers,
    ExponentialTail,
    OwnTails,
    StepTail,
    kept_rows,
    local_test_counts,
    long_tailed,
    tiers_by_count,
    tiers_by_share,
    with_local_tests,
)
from fedquilt.data.partitions.measures import gini, imbalance_factor, label_distances, label_entropy, measures
from fedquilt.data.partitions.quantity import DirichletSizes, LogNormal, PowerLaw
from fedquilt.data.partitions.shift import Colour, LabelPermutation, Light, Noise, Rotation
from fedquilt.data.prepare import Pixels
from fedquilt.data.sources.catalogue import DatasetEntry, File
from fedquilt.data.sources.sources import available, fetch, read, texts, verify
from fedquilt.data.streams.clock import Clock
from fedquilt.data.streams.streams import Stream
from fedquilt.data.subsets import held_out, only_clients, without_labels
from fedquilt.data.transforms import (
    GreyToRGB,
    Normalise,
    RandomCrop,
    RandomFlip,
    Resize,
    Transforms,
    channel_statistics,
)

__all__ = [
    "IID",
    "Arrays",
    "ClassGroups",
    "ClassTiers",
    "Clock",
    "Colour",
    "DatasetEntry",
    "Dirichlet",
    "DirichletChoice",
    "DirichletCuts",
    "DirichletPerClient",
    "DirichletSizes",
    "ExponentialTail",
    "Federation",
    "File",
    "GreyToRGB",
    "LabelPermutation",
    "Light",
    "LogNormal",
    "Majority",
    "Noise",
    "Normalise",
    "OwnTails",
    "Partition",
    "Pathological",
    "Pixels",
    "PowerLaw",
    "RandomCrop",
    "RandomFlip",
    "Resize",
    "Rotation",
    "Shards",
    "StepTail",
    "Stream",
    "Transforms",
    "TruncatedPerClient",
    "Words",
    "available",
    "channel_statistics",
    "fetch",
    "gini",
    "held_out",
    "imbalance_factor",
    "kept_rows",
    "label_distances",
    "label_entropy",
    "local_test_counts",
    "long_tailed",
    "measures",
    "only_clients",
    "read",
    "texts",
    "tiers_by_count",
    "tiers_by_share",
    "verify",
    "with_local_tests",
    "without_labels",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:  # Entry of 0.1
        from fedquilt.moved import moved

        return moved(f"{__name__}:{name}")
