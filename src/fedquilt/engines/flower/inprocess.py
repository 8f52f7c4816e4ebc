"""A Flower grid whose nodes are client apps in this process: real messages, really encoded, and no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity


class InProcess(Grid):  # type: ignore[misc]
    """Each node is a client app with a context of its own; a message is answered when its reply is pulled.

    Args:
        nodes: The client app of each node.
    """

    def __init__(self, nodes: Mapping[int, ClientApp]) -> None:
        self.nodes = dict(nodes)
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # messages cannot be made without
        self.contexts = {n: Context(1, n, {}, RecordDict(), {}, 1) for n in self.nodes}
        self._waiting: dict[str, Message] = {}
        self._count = 0

    def set_run(self, run: object) -> None:
        """There is one run."""

    @property
    def run(self) -> Any:
        """There is one run."""
        return None

    def create_message(self, *args: object, **settings: object) -> Message:
        """Messages are made by their constructor."""
        raise NotImplementedError("Make a Message.")

    def get_node_ids(self) -> Iterable[int]:
        """All nodes are there."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the messages until their replies are pulled."""
        names = []
        for message in messages:
            self._count += 1
            name = f"message-{self._count}"
            self._waiting[name] = coded(message)
            self._waiting[name].metadata.__dict__["_message_id"] = name
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Answer the messages."""
        return [self._answer(self._waiting.pop(m)) for m in message_ids if m in self._waiting]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        try:
            reply = self.nodes[node](message, self.contexts[node])
        except Exception as error:
            reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
        name = message.metadata.message_id
        answer = coded(reply)
        answer.metadata.__dict__["_reply_to_message_id"] = name
        return answer

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """All replies, at once."""
        return self.pull_messages(self.push_messages(messages))


def coded(message: Message) -> Message:
    """The message as it arrives after Flower has written it to bytes and read it back."""
    contents = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    arrived: Message = inflate_object_from_contents(message.object_id, contents)
    return arrived
