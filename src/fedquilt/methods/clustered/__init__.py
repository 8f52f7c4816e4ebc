"""Clients in groups, each with a model of its own."""
