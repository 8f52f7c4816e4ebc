"""Training steps that are recorded once and played again, where that changes nothing."""
