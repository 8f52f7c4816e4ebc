"""Trained weights: read, compared, written and laid into networks."""

from fedquilt.models.weights.start import Loaded as Loaded
from fedquilt.models.weights.start import load_weights as load_weights
from fedquilt.models.weights.start import started as started
from fedquilt.models.weights.start import with_weights as with_weights
