"""The folder of a run: files that are written whole or not at all, logs, snapshots, clients' states."""
