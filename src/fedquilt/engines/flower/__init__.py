"""The same method on a real Flower federation. Only this room imports flwr."""

import os

# Before flwr and ray are imported, which read these then: nothing is reported to anybody unless the user says so.
for _name, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_name, _value)
