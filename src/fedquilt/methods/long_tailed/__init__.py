"""Data in which a few classes have most of the rows."""
