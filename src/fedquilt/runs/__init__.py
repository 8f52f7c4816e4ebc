"""Runs: configuration, folders, snapshots, evaluation, comparison. The only room that writes files."""
