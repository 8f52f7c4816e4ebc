"""For people who come from other libraries."""
