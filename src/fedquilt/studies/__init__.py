"""Several runs as one study: comparisons and sweeps, played one by one or side by side."""
