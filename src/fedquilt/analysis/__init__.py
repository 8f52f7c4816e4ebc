"""What one asks of a run after it, or of a machine, a data set or saved models before it."""
