"""Codecs: how uploads and downloads travel in fewer bytes."""

from fedquilt.pieces.codecs.fields import on as on
from fedquilt.pieces.codecs.fields import together as together
from fedquilt.pieces.codecs.hgc import hgc as hgc
from fedquilt.pieces.codecs.localized import localized as localized
from fedquilt.pieces.codecs.sparse_wire import sparse as sparse

__all__ = ["hgc", "localized", "on", "sparse", "together"]
