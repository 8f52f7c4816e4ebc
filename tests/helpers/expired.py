"""Keys whose server certificate has expired, and a server that shows it."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from fedquilt.deploy import keys as module
from fedquilt.deploy.flower_command import Address
from fedquilt.deploy.keys import Keys, make


def expired(folder: Path, nodes: Sequence[str]) -> Keys:
    """A key folder as it was made two years ago: its CA is still good, its server's certificate is not."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=730)
    clock = SimpleNamespace(now=lambda zone: then)
    past = SimpleNamespace(datetime=clock, timedelta=datetime.timedelta, UTC=datetime.UTC)
    with patch.object(module, "datetime", past):
        make(folder, ["localhost"], nodes)
    return Keys(folder)


class Greeting:
    """Listens with the certificate of a key folder, as a SuperLink would (ours refuses to start with an expired one);
    gives its address. Nobody who looks at the certificate gets further."""

    def __init__(self, keys: Keys) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*keys.server)
        self.door = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> Address:
        threading.Thread(target=self._serve, daemon=True).start()
        return Address("127.0.0.1", self.door.getsockname()[1])

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                guest, _ = self.door.accept()
                with suppress(OSError), self.context.wrap_socket(guest, server_side=True) as inside:
                    inside.recv(1)

    def __exit__(self, *exception: object) -> None:
        self.door.close()
