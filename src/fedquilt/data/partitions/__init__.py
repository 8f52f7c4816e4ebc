"""Ways to divide a data set over clients, long tails, and shifts of what clients see."""

from fedquilt.data.partitions.class_groups import ClassGroups as ClassGroups
from fedquilt.data.partitions.class_groups import Pathological as Pathological
from fedquilt.data.partitions.labels import IID as IID
from fedquilt.data.partitions.labels import Dirichlet as Dirichlet
from fedquilt.data.partitions.labels import DirichletPerClient as DirichletPerClient
from fedquilt.data.partitions.labels import Shards as Shards
from fedquilt.data.partitions.legacy import DirichletChoice as DirichletChoice
from fedquilt.data.partitions.legacy import DirichletCuts as DirichletCuts
from fedquilt.data.partitions.legacy import TruncatedPerClient as TruncatedPerClient
from fedquilt.data.partitions.quantity import DirichletSizes as DirichletSizes
from fedquilt.data.partitions.quantity import LogNormal as LogNormal
from fedquilt.data.partitions.quantity import PowerLaw as PowerLaw
