"""Trackers: other places that a run's numbers go to, by name (entry points ``fedquilt.trackers``)."""

from __future__ import annotations

from fedquilt.runs.trackers.protocol import RunInfo, Tracker
from fedquilt.runs.trackers.told import Trackers

__all__ = ["RunInfo", "Tracker", "Trackers"]
