"""The global model beside a download, for evaluations: tensors that the download holds already do not travel again."""

from __future__ import annotations

from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.errors import FrameError
from fedquilt.records.record import pack, record, tensors_in

_OWN = -1


@record(name="fedquilt.engines.beside:Beside")
class Beside:
    """A model: for each name its tensor's place among those of the download, or -1 for one that is in ``own``."""

    places: dict[str, int]
    own: dict[str, Tensor]

    def model(self, download: object) -> Params:
        """The model, with the tensors of the download that it was sent beside."""
        held = list(tensors_in(download))
        if not all(_OWN <= place < len(held) for place in self.places.values()):
            raise FrameError("malformed evaluation: its model names tensors that the download does not have")
        return {name: self.own[name] if place == _OWN else held[place] for name, place in self.places.items()}


class Companion:
    """Packs one model for many downloads; downloads that hold the same parts of it get the very same frame."""

    def __init__(self, model: Params) -> None:
        self.model = model
        self._frames: dict[tuple[int, ...], bytes] = {}

    def frame(self, download: object) -> bytes:
        """The frame of the model beside a download, as the client sees that."""
        held = {id(tensor): place for place, tensor in enumerate(tensors_in(download))}
        places = {name: held.get(id(tensor), _OWN) for name, tensor in self.model.items()}
        key = tuple(places.values())
        if key not in self._frames:
            own = {name: tensor for name, tensor in self.model.items() if places[name] == _OWN}
            self._frames[key] = pack(Beside(places, own), compact=True)
        return self._frames[key]
