"""A vmapped trainer's step as a list of plain operations: listened to once, then run without what finding them costs.

On a CPU, mapping a step over clients and differentiating it takes longer than the arithmetic of a tiny model. What
comes out is always the same list of operations over the same buffers, so it is kept, as lines of Python.

`make_fx` of torch listens in the same way, but imports the whole compiler first, which takes longer than a short run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedstrata.client.vmapped import VmappedTrainer

PATIENCE = 8  # steps for some number of replicas before they are traced: a short run, or a first round, does not wait


class Tracer:
    """Runs the traced step of a vmapped trainer, for some number of replicas.

    A step that cannot be traced is taken as it is.
    """

    def __init__(self, vmapped: VmappedTrainer, give_up: Callable[[str], None]):
        self._vmapped, self._give_up, self._able = vmapped, give_up, True
        self._traced: dict[int, Callable[[], None]] = {}
        self._taken: Counter[int] = Counter()  # steps by number of replicas

    def __call__(self, replicas: int) -> None:
        """Take a step."""
        if replicas in self._traced:
            with torch.no_grad():
                self._traced[replicas]()
            return
        self._taken[replicas] += 1
        if not self._able or self._taken[replicas] <= PATIENCE:
            self._vmapped.step(replicas)
            return
        with Listener() as listener:
            self._vmapped.step(replicas)
        if listener.why_not is None:
            self._traced[replicas] = listener.program()
        else:
            self._able = False
            self._give_up(f"steps are not traced: {listener.why_not}")


class Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation while a step is taken. Tensors that no operation made are taken as they are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any, Any]] = []  # what was called, with what, and what came out
        self._same: dict[int, Tensor] = {}  # a tensor, by its id, that is another one under a new name
        self._made: set[int] = set()  # ids of tensors that operations made
        self._alive: list[Tensor] = []  # so that ids stay theirs
        self.why_not: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave the compiler alone: to be skipped by it, one has to import it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and write it down."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not isinstance(out, Tensor | list | tuple | None):
            self.why_not = f"{func} reads a number from a tensor"
        given, made = list(_tensors((args, kwargs))), list(_tensors(out))
        self._alive += made
        if isinstance(out, Tensor) and _is_view(func):
            if _alike(out, given[0]):
                self._same[id(out)] = self._origin(given[0])
                return out
            if id(self._origin(given[0])) not in self._made:  # a view of a buffer is good for all steps
                return out
        self._made |= {id(t) for t in made if not any(t is arg for arg in given)}
        self._calls.append((func, args, kwargs, out))
        return out

    def _origin(self, tensor: Tensor) -> Tensor:
        return self._same.get(id(tensor), tensor)

    def program(self) -> Callable[[], None]:
        """Return a function that does all of it again, but for what nobody needs."""
        needed, kept = set[int](), []
        for func, args, kwargs, out in reversed(self._calls):
            if func._schema.is_mutable or any(id(t) in needed for t in _tensors(out)):
                needed |= {id(self._origin(t)) for t in _tensors((args, kwargs))}
                kept.append((func, args, kwargs, out))
        names = _Names(self._origin, self._made)
        lines = ["def step():", *(f"    {names.line(*call)}" for call in reversed(kept))]
        exec("\n".join([*lines, "    return None"]), names.known)
        return names.known["step"]  # type: ignore[no-any-return]


class _Names:
    """Names of tensors, functions and other values in the lines of a program."""

    def __init__(self, origin: Callable[[Tensor], Tensor], made: set[int]):
        self._origin, self._made = origin, made
        self._of: dict[int, str] = {}
        self.known: dict[str, Any] = {}  # what the program finds ready

    def line(self, func: Any, args: Any, kwargs: Any, out: Any) -> str:
        """Write a call down."""
        given = [self._text(arg) for arg in args] + [f"{key}={self._text(value)}" for key, value in kwargs.items()]
        call = f"{self._ready(func)}({', '.join(given)})"
        if isinstance(out, Tensor):
            return f"{self._new(out)} = {call}"
        return f"{''.join(f'{self._new(t)}, ' for t in out)} = {call}" if out else call

    def _new(self, out: Tensor | None) -> str:
        return self._name(out, "t") if id(out) in self._made else "_"

    def _text(self, value: Any) -> str:
        if isinstance(value, Tensor):
            tensor = self._origin(value)
            return self._name(tensor, "t") if id(tensor) in self._made else self._ready(tensor)
        if isinstance(value, list | tuple) and any(True for _ in _tensors(value)):
            return f"[{', '.join(map(self._text, value))}]"
        return self._ready(value)

    def _ready(self, value: Any) -> str:
        name = self._name(value, "v")
        self.known[name] = value
        return name

    def _name(self, value: Any, kind: str) -> str:
        return self._of.setdefault(id(value), f"{kind}{len(self._of)}")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _is_view(func: Any) -> bool:
    returned = func._schema.returns
    alias = returned[0].alias_info if returned else None
    return (alias is not None and not alias.is_write) or func is torch.ops.aten._unsafe_view.default


def _alike(one: Tensor, other: Tensor) -> bool:
    """Say whether a view is what it is a view of."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.data_ptr() == other.data_ptr()
    )
