"""Codecs: how uploads and downloads travel in fewer bytes."""

from fedquilt.pieces.codecs.around import chain as chain
from fedquilt.pieces.codecs.around import error_feedback as error_feedback
from fedquilt.pieces.codecs.fields import on as on
from fedquilt.pieces.codecs.fields import together as together
from fedquilt.pieces.codecs.hgc import hgc as hgc
from fedquilt.pieces.codecs.hgc import hgc_rc as hgc_rc
from fedquilt.pieces.codecs.hgc_legacy import hgc_legacy as hgc_legacy
from fedquilt.pieces.codecs.lfsr import lfsr as lfsr
from fedquilt.pieces.codecs.matrices import power_sgd as power_sgd
from fedquilt.pieces.codecs.quantised import half as half
from fedquilt.pieces.codecs.quantised import qsgd as qsgd
from fedquilt.pieces.codecs.quantised import sign as sign
from fedquilt.pieces.codecs.quantised import uniform as uniform
from fedquilt.pieces.codecs.sparse import localized as localized
from fedquilt.pieces.codecs.sparse import random_k as random_k
from fedquilt.pieces.codecs.sparse import top_k as top_k
from fedquilt.pieces.codecs.sparse_wire import sparse as sparse

__all__ = [
    "chain",
    "error_feedback",
    "half",
    "hgc",
    "hgc_legacy",
    "hgc_rc",
    "lfsr",
    "localized",
    "on",
    "power_sgd",
    "qsgd",
    "random_k",
    "sign",
    "sparse",
    "together",
    "top_k",
    "uniform",
]
