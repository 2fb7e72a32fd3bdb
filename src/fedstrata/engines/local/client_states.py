"""Where the clients' state lies between client updates: on the device as far as it fits, then in the host's memory.

What was written longest ago goes to the host first, into pinned memory, from which it comes back quickly.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping

import torch

from fedstrata.core.engine import ClientStates
from fedstrata.core.messages import Tag, Tensors, tensor_bytes, to_host


class ClientStateStore:
    """Client state by client, with the tag of the report it came with; `room` is what each device spares, in bytes.

    Tensors are never changed in place: whoever got a state may keep it.
    """

    def __init__(self, room: Mapping[torch.device, int] | None = None):
        self.states: dict[int, tuple[Tag, Tensors]] = {}
        self._room, self._used = dict(room or {}), Counter[torch.device]()
        self._on_device: dict[torch.device, OrderedDict[int, int]] = {}  # bytes by client, the newest last

    def put(self, client: int, tag: Tag, tensors: Tensors) -> None:
        """Take a client's new state; others may have to leave the device for it."""
        for device, there in self._on_device.items():
            self._used[device] -= there.pop(client, 0)
        self.states[client] = tag, tensors
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            size = tensor_bytes({name: tensor for name, tensor in tensors.items() if tensor.device == device})
            self._on_device.setdefault(device, OrderedDict())[client] = size
            self._used[device] += size
            self._keep_within_room(device)

    def evict(self) -> bool:
        """Bring everything to the host, where it stays from now on; say whether anything was on a device."""
        if not any(self._on_device.values()):
            return False
        self._room = {}
        for device in self._on_device:
            self._keep_within_room(device)
        return True

    def _keep_within_room(self, device: torch.device) -> None:
        while self._used[device] > self._room.get(device, 0):
            oldest, size = self._on_device[device].popitem(last=False)
            self._used[device] -= size
            tag, tensors = self.states[oldest]
            self.states[oldest] = tag, {k: to_host(t) if t.device == device else t for k, t in tensors.items()}

    def replace_all(self, states: ClientStates) -> None:
        """Forget everything, and take these."""
        self.states = {}
        self._used.clear()
        self._on_device.clear()
        for client, (tag, tensors) in states.items():
            self.put(client, tag, tensors)
