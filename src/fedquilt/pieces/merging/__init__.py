"""Merging: one model out of several that began at the same weights. Every rule works name by name, so that models may
be files that are read one tensor at a time, and every rule is also an aggregator."""
