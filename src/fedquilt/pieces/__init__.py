"""Small choices of a few shapes: objective terms, aggregators, optimisers, schedules."""
