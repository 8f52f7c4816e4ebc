"""What finished runs say: their tables, statistics, traffic, clusters and pictures."""
