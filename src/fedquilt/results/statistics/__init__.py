"""What may be said of numbers over seeds and clients: intervals, paired tests, effect sizes, spread, costs."""
