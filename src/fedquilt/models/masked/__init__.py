"""Masked autoencoders."""
