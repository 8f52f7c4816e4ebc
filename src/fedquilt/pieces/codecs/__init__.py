"""Codecs: how uploads and downloads travel in fewer bytes."""

from fedquilt.pieces.codecs.fields import on as on
from fedquilt.pieces.codecs.fields import together as together
from fedquilt.pieces.codecs.hgc import hgc as hgc

__all__ = ["hgc", "on", "together"]
