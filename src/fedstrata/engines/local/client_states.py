"""Where the clients' state lies between client updates: on the device as far as it fits, then in the host's memory.

What was written longest ago goes to the host first, into pinned memory, from which it comes back quickly.
"""

from __future__ import annotations

from collections import OrderedDict

from fedstrata.core.engine import ClientStates
from fedstrata.core.messages import Tag, Tensors, tensor_bytes, to_host


class ClientStateStore:
    """Client state by client, with the tag of the report it came with; `room` is what devices spare for it, in bytes.

    Tensors are never changed in place: whoever got a state may keep it.
    """

    def __init__(self, room: int = 0):
        self.states: dict[int, tuple[Tag, Tensors]] = {}
        self._room, self._used = room, 0
        self._on_device: OrderedDict[int, int] = OrderedDict()  # bytes by client, the newest last

    def put(self, client: int, tag: Tag, tensors: Tensors) -> None:
        """Take a client's new state; others may have to leave the device for it."""
        self._used -= self._on_device.pop(client, 0)
        self.states[client] = tag, tensors
        if size := tensor_bytes({name: tensor for name, tensor in tensors.items() if tensor.is_cuda}):
            self._on_device[client] = size
            self._used += size
        while self._used > self._room:
            oldest, size = self._on_device.popitem(last=False)
            self._used -= size
            tag, tensors = self.states[oldest]
            self.states[oldest] = tag, {name: to_host(tensor) for name, tensor in tensors.items()}

    def replace_all(self, states: ClientStates) -> None:
        """Forget everything, and take these."""
        self.states, self._used = {}, 0
        self._on_device.clear()
        for client, (tag, tensors) in states.items():
            self.put(client, tag, tensors)
