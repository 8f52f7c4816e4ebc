"""Who has which data: federations, ways to divide a data set, and data sets by name."""

from fedquilt.data.federation import Federation
from fedquilt.data.look import Majority
from fedquilt.data.npz import Arrays
from fedquilt.data.partitions import IID, ClassGroups, Dirichlet, Partition, Shards
from fedquilt.data.prepare import Pixels
from fedquilt.data.sources import available, read

__all__ = [
    "IID",
    "Arrays",
    "ClassGroups",
    "Dirichlet",
    "Federation",
    "Majority",
    "Partition",
    "Pixels",
    "Shards",
    "available",
    "read",
]
