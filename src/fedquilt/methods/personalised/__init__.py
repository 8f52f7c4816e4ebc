"""A model for each client."""
