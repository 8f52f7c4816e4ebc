"""Prototypes of features: found by clustering, kept at clients and in a bank, and used as anchors."""
