"""The one client app and the one server app for every method. Neither torch nor data are loaded to load this."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedquilt.engines.flower.content import frame_array, from_content, to_content
from fedquilt.errors import FedquiltError, FrameError

if TYPE_CHECKING:
    from fedquilt.engines.flower.keep import Keep

log = logging.getLogger("fedquilt.node")
Serve = Callable[[str, dict[str, bytes], Context], dict[str, bytes]]


class FlowerClient(ClientApp):  # type: ignore[misc]  # flwr's classes are untyped where it is not installed
    """Serves any method: every exchange is a message action of its own name, and none has to be registered.

    Args:
        serve: Answers a message: from its type and its frames, the frames of the reply.
    """

    def __init__(self, serve: Serve) -> None:
        super().__init__()
        self.serve = serve

    def __call__(self, message: Message, context: Context) -> Message:
        """Serve one message."""
        try:
            frames = self.serve(message.metadata.message_type, from_content(message.content), context)
        except FedquiltError:
            raise
        except Exception as error:  # Flower sends its text to the server, and it may quote data
            log.exception("a message was not answered")
            raise FrameError(f"failed ({type(error).__name__})") from None
        return Message(to_content(frames), reply_to=message)


class FlowerServer(ServerApp):  # type: ignore[misc]
    """A server app that is one function of the grid and the context."""

    def __init__(self, play: Callable[[Grid, Context], None]) -> None:
        super().__init__()
        self.main()(lambda grid, context: play(grid, context))


def keeper(context: Context, folder: Path | None) -> Callable[[str], Keep]:
    """Where the states of a run's clients are kept: in a folder, or else in what Flower hands from message to message
    (which is lost when the node ends)."""
    from fedquilt.engines.flower.keep import InMemory, Keep, OnDisk, safe

    def keep(run: str) -> Keep:
        return Keep(InMemory(_Arrays(context, safe(run))) if folder is None else OnDisk(folder / safe(run)))

    return keep


class _Arrays(MutableMapping[str, bytes]):
    """Frames in the state that Flower hands from message to message."""

    def __init__(self, context: Context, run: str) -> None:
        self.context, self.name = context, f"fedquilt-{run}"

    @property
    def _record(self) -> Any:
        if self.name not in self.context.state:
            self.context.state[self.name] = ArrayRecord()
        return self.context.state[self.name]

    def __getitem__(self, name: str) -> bytes:
        data: bytes = self._record[name].data
        return data

    def __setitem__(self, name: str, frame: bytes) -> None:
        self._record[name] = frame_array(frame)

    def __delitem__(self, name: str) -> None:
        del self._record[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._record))

    def __len__(self) -> int:
        return len(self._record)


def versions() -> dict[str, str]:
    """What runs here."""
    return {name: _version(name) for name in ("fedquilt", "torch", "flwr")}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"
