"""The local step compiled for a GPU: Inductor fuses norms, activations and the optimizer's arithmetic.

The step is listened to once (`make_fx`), from the gather of its batch to the new weights, as one list of operations:
whatever can be recorded can be compiled, hooks, parts and modules of one's own included. All workers share what comes
out, and each of them records it. Compiled code lies in a folder, where the next process finds it.

Compilers make mistakes: the first steps are taken both ways, and what differs is not used.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstrata.client.pure_step import pure_step, step_tensors
from fedstrata.client.trainer import Trainer
from fedstrata.core.client_parts import ClientPlan
from fedstrata.data import store
from fedstrata.engines.local.both_ways import TOLERANCES, compare, taken_back

aten = torch.ops.aten
FOLDER = "TORCHINDUCTOR_CACHE_DIR"
CONVOLUTIONS = {aten.convolution.default: 2, aten.convolution_backward.default: 3}  # images among their arguments
WIDE = 16  # channels from which on they are better last
TENSOR_CORES = ("tf32", "bf16")  # precisions that they compute in
_COMPILED: dict[str, Any] = {}  # in this process, by what it is made of: the runs of a comparison share it
Step = Callable[[int, bool], None]
Run = Callable[[Sequence[Tensor]], Any]


class Compiler:
    """Compiles the steps of a pool's workers; `give_up` hears why one could not be."""

    def __init__(self, local: ClientPlan, precision: str, give_up: Callable[[str], None]):
        self._tolerance, self._give_up, self.channels_last = TOLERANCES[precision], give_up, precision in TENSOR_CORES
        self._made: dict[tuple[object, ...], Run | None] = {}  # None: it is taken as it is
        self.apart = 0.0  # how far the last one was from the plain step
        self._folder = Path(os.environ.get(FOLDER) or store.folder() / ".compiled")
        about = repr((local.build(), local.chain, local.inputs, local.batch_size, precision, torch.__version__))
        self._mark = self._folder / f"{sha256(about.encode()).hexdigest()}.known"

    @property
    def knows(self) -> bool:
        """Whether such a step was compiled before, by this process or another."""
        return self._mark.exists()

    def step_of(self, trainer: Trainer) -> Step:
        """Return a trainer's step, which is compiled when a size is new."""
        tensors, device = step_tensors(trainer), trainer.buf.w.device

        def step(width: int, full: bool) -> None:
            key = device, width
            if full and key not in self._made:
                self._made[key] = self._compiled(trainer, tensors, width)
            if full and (run := self._made[key]) is not None:
                run(tensors)
            else:  # where padding matters, one step an epoch, which is not worth a compiler's time
                trainer.step(width, full)

        return step

    def _compiled(self, trainer: Trainer, tensors: list[Tensor], width: int) -> Run | None:
        os.environ[FOLDER] = str(self._folder)
        try:
            run = compile_step(trainer, tensors, width, self.channels_last)
            compared = compare(trainer, tensors, run, width, self._tolerance)
            self.apart = compared.apart
            if self.apart <= self._tolerance.apart and compared.wrong is None:
                with suppress(OSError):  # only a later guess depends on it
                    self._folder.mkdir(parents=True, exist_ok=True)
                    self._mark.touch()
                return run
            how = f": {compared.wrong}" if compared.wrong else f" by {self.apart:.1e} of what it changes"
            why = f"compiled, the step differs from the plain one{how}"
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler may fail in any way
            why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        self._give_up(f"local steps are not compiled: {why}")
        return None


def compile_step(trainer: Trainer, tensors: Sequence[Tensor], width: int, channels_last: bool = False) -> Run:
    """Compile a step as a function of the tensors that it reads and changes."""
    from torch._inductor import standalone_compile  # noqa: PLC0415  takes seconds, and few runs need it

    graph = trace_step(trainer, tensors, width)
    if channels_last:
        put_channels_last(graph)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises on precision, which is the user's choice
        name = _name(graph, tensors)
        if name not in _COMPILED:
            # Alone among torch's ways, this one finds on the disk what another process compiled.
            _COMPILED[name] = standalone_compile(graph, list(tensors), dynamic_shapes="from_example_inputs")
    compiled = _COMPILED[name]

    def run(tensors: Sequence[Tensor]) -> None:
        with torch.no_grad():
            compiled(*tensors)

    return run


def _name(graph: torch.fx.GraphModule, tensors: Sequence[Tensor]) -> str:
    """Return a name that two steps share if they are the same operations on tensors of the same kind."""
    held = _held(graph)
    kinds = [(t.shape, t.stride(), t.dtype, t.device) for t in (*tensors, *held)]
    values = b"".join(t.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for t in held)
    return sha256(repr((graph.code, kinds)).encode() + values).hexdigest()


def trace_step(trainer: Trainer, tensors: Sequence[Tensor], width: int) -> torch.fx.GraphModule:
    """Take a step, and give all its operations; the trainer is left as it was."""
    from torch._dispatch.python import enable_python_dispatcher  # noqa: PLC0415
    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415

    def step(*tensors: Tensor) -> tuple[()]:
        pure_step(trainer, tensors, width)
        return ()

    with taken_back(trainer), enable_python_dispatcher():  # so that a GPU's batch norm is one that the compiler knows
        graph = make_fx(step)(*tensors)
    _check(graph, tensors)
    return graph


def put_channels_last(graph: torch.fx.GraphModule) -> None:
    """Give convolutions their images with channels last, as tensor cores want them; what makes these writes them so.

    Norms between them forget how their input lay, so that a step whose images begin so does not stay so.
    """
    nodes = graph.graph
    for node in [*nodes.nodes]:
        if node.target is aten.view.default:  # gradients of weights lie otherwise now
            node.target = aten.reshape.default
        if (given := CONVOLUTIONS.get(node.target)) is None:
            continue
        images = [node.args[place] for place in range(given)]
        if any(image.meta["val"].ndim != 4 for image in images) or min(images[-1].meta["val"].shape[:2]) < WIDE:
            continue
        with nodes.inserting_before(node):
            for place, image in enumerate(images):
                turned = nodes.call_function(aten.clone.default, (image,), {"memory_format": torch.channels_last})
                node.update_arg(place, turned)
    graph.recompile()


def _check(graph: torch.fx.GraphModule, tensors: Sequence[Tensor]) -> None:
    """Refuse a step that is no function of its tensors: it draws, or holds on to what belongs to one worker."""
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise ValueError(f"it draws from torch's own generator ({node.target})")
    known = {t.untyped_storage().data_ptr() for t in tensors if t.numel()}
    if any(t.numel() and t.untyped_storage().data_ptr() in known for t in _held(graph)):
        raise ValueError("it uses a tensor of the model under another name, such as tied weights")


def _held(graph: torch.fx.GraphModule) -> list[Tensor]:
    """Return the tensors that a step uses and nobody gives it."""
    held = [getattr(graph, node.target) for node in graph.graph.find_nodes(op="get_attr")]
    return [t for t in held if isinstance(t, Tensor)]
