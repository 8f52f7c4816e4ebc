"""Measures of models and of federations."""
