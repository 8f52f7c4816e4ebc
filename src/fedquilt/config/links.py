"""Settings of the virtual clock: how fast devices and their links are."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedquilt.errors import did_you_mean

Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeast0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Profile(BaseModel):
    """A device and its link: megabits per second each way (None: no limit), milliseconds that a message is under way
    before its first byte arrives, and how many times longer work takes than it took here."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    uplink_mbps: Above | None = None
    downlink_mbps: Above | None = None
    latency_ms: AtLeast0 = 0.0
    compute_scale: Above = 1.0


PRESETS = {
    "phone-3g": Profile(uplink_mbps=1.0, downlink_mbps=4.0, latency_ms=100.0, compute_scale=20.0),
    "phone-4g": Profile(uplink_mbps=8.0, downlink_mbps=25.0, latency_ms=50.0, compute_scale=10.0),
    "wifi": Profile(uplink_mbps=20.0, downlink_mbps=100.0, latency_ms=10.0, compute_scale=4.0),
    "hospital": Profile(uplink_mbps=500.0, downlink_mbps=500.0, latency_ms=5.0, compute_scale=1.0),
}  # round figures, chosen to differ; not measured


class Network(Profile):
    """What the virtual clock assumes.

    Args:
        seconds_per_step: Seconds of a step of local training on a device of ``compute_scale`` 1, instead of those that
            were measured; the clock is then the same on every machine.
        server_seconds: Seconds of the server for each exchange, instead of those that were measured; 0 with
            ``seconds_per_step``.
        spread: Each client's rates and speed are multiplied by exp(spread z), z standard normal, one draw for each.
        profiles: Names and shares: each client is one of them, drawn by ``seed``.
        own: Profiles beside the presets, by name.
        seed: Of these draws; the same for all methods and seeds of a comparison.
    """

    seconds_per_step: Above | None = None
    server_seconds: AtLeast0 | None = None
    spread: AtLeast0 = 0.0
    profiles: dict[str, Above] = {}
    own: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], Profile] = {}
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _sensible(self) -> Network:
        known = {**PRESETS, **self.own}
        for name in self.profiles:
            if name not in known:
                told = did_you_mean(name, known)
                raise ValueError(f"unknown profile {name!r}{told} (known: {', '.join(sorted(known))})")
        given = [name for name, info in Profile.model_fields.items() if getattr(self, name) != info.default]
        if self.profiles and given:
            raise ValueError(
                f"profiles and {given[0]} are mutually exclusive; define your own profiles below [network.own]"
            )
        if self.own and not self.profiles:
            raise ValueError("profiles of your own need shares: profiles = { " + next(iter(self.own)) + " = 1.0 }")
        return self
