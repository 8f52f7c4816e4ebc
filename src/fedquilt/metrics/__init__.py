"""Measures of models and of federations."""

PRIMARY = "accuracy"  # what methods are compared by, and the best round is chosen by if nothing else is asked for
