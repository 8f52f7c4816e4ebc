"""Engines carry exchanges to clients. They know exchanges, never methods, pieces or data sets."""
