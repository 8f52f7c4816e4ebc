"""What a client has before its first client update, the model that it uses now, and the modes that models are scored
in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site


def first_state(method: Any, seed: Seed, client: ClientId) -> Any:
    """A client's state before its first client update: a pure function of the run's seed and the client's id.

    By default every client draws its own first values. A method with ``shared_start`` gives all clients the same ones,
    those of the model whose shared part the server began with.
    """
    shared = bool(getattr(method, "shared_start", False))
    return method.init_client(seed.fold("server") if shared else seed.fold("client", client))


def mode_scores(method: object) -> dict[str, str]:
    """For a method whose global model could be any of several ``modes(held)``: under which name evaluations tell the
    scores of each mode. Empty for all other methods."""
    return {mode: f"global.{mode}" for mode in getattr(method, "mode_names", ())}


def selected_model(method: object, download: object, client: object, site: Callable[[], Site | None]) -> Params | None:
    """The model that a client selects by its own training samples, or None where there is nothing to select.

    Where a method has several models and has not placed a client yet, the client takes the one of lowest loss on its
    own training samples: the method's ``select_model(download, client, site)``. ``site`` gives None for a client
    without training samples, and is not asked for methods that never select.
    """
    select = getattr(method, "select_model", None)
    rows = None if select is None else site()
    model: Params | None = None if select is None or rows is None else select(download, client, rows)
    return model


def deployed_model(method: Any, download: Any, client: Any, site: Callable[[], Site | None]) -> Params:
    """The model that a client would use now: the one it selects, and otherwise its ``personal_model``."""
    selected = selected_model(method, download, client, site)
    model: Params = method.personal_model(download, client) if selected is None else selected
    return model
