"""Sparse merging of models, round after round."""
