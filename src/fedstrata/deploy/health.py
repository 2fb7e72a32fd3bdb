"""What a machine has that runs need, what it lacks, and what to do about that."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from fedstrata import __version__
from fedstrata.core.errors import unknown_name
from fedstrata.core.machine.threads import cores
from fedstrata.data import store
from fedstrata.deploy.state import PORT
from fedstrata.models.timm import MISFIT

EXTRAS = {  # what each is for, and by which modules it is known to be there
    "flower": ("real sites over Flower: fedstrata deploy", ("flwr", "grpc")),
    "board": ("runs in a browser while they go on: fedstrata board", ("starlette", "uvicorn")),
    "dp": ("differential privacy: privacy.dp", ("dp_accounting",)),
    "he": ('labels by homomorphic encryption: privacy.labels = "ckks-paper"', ("tenseal",)),
    "tune": ("tuning that chooses what to try: fedstrata compare --tuner optuna", ("optuna",)),
    "onnx": ("models for other runtimes: fedstrata export --onnx", ("onnx", "onnxscript")),
    "ray": ('clusters of machines: engine.kind = "ray", fedstrata compare --engine ray', ("ray",)),
    "metrics": ("figures of servers and sites for Prometheus: --metrics-port", ("prometheus_client",)),
    "figures": ("figures for papers: fedstrata report --figures --format pdf", ("matplotlib",)),
    "pandas": ("tables in notebooks: run.to_pandas()", ("pandas",)),
    "parquet": ("data in Parquet files", ("pyarrow",)),
    "hf": ("Hugging Face data sets and Flower's partitioners", ("datasets", "flwr_datasets")),
    "timm": ('networks of timm: model.name = "timm"', ("timm",)),
    "tensorboard": ('runs in TensorBoard: track = ["tensorboard"]', ("tensorboard",)),
    "mlflow": ('runs in MLflow: track = ["mlflow"]', ("mlflow", "sqlalchemy", "alembic")),
    "wandb": ('runs in Weights & Biases: track = ["wandb"]', ("wandb",)),
}
PORTS = {8765: "fedstrata board", PORT: "fedstrata deploy server"}
GIB = 2**30
LITTLE = 2 * GIB  # of memory or disk, below which runs of usual size fail


class Finding(NamedTuple):
    """One thing that was looked at; `bad` must be mended before runs work, of a `note` one may want to know."""

    what: str
    state: Literal["good", "note", "bad"]
    said: str
    advice: str = ""


def examine(needed: tuple[str, ...] = ()) -> list[Finding]:
    """Look at everything; extras that are `needed` are bad where they are missing."""
    for extra in needed:
        if extra not in EXTRAS:
            raise unknown_name("--need", extra, EXTRAS)
    return [_python(), _torch(), _gpu(), _cores(), _memory(), _runs(), _data(), *_ports(), *_extras(needed)]


def _python() -> Finding:
    said = f"{platform.python_version()}, fedstrata {__version__} in {Path(__file__).parents[1]}"
    if sys.version_info[:2] < (3, 14):
        return Finding("python", "good", said)
    return Finding("python", "note", said, "tested are Python 3.11 to 3.13; make an environment with one of these")


def _torch() -> Finding:
    try:
        import torch  # noqa: PLC0415  it may be what is broken

        (torch.ones(2, 2) @ torch.ones(2, 2)).sum().item()
    except Exception as error:  # a broken install raises whatever its libraries raise
        return Finding("torch", "bad", f"cannot compute: {error}", "install it again: pip install 'torch>=2.11,<2.14'")
    known = (2, 11) <= tuple(int(part) for part in torch.__version__.split(".")[:2]) <= (2, 13)
    advice = "" if known else "tested are 2.11 to 2.13: pip install 'torch>=2.11,<2.14'"
    return Finding("torch", "good" if known else "note", torch.__version__, advice)


def _gpu() -> Finding:
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
        free, whole = torch.cuda.mem_get_info()
        said = f"{', '.join(names)}; CUDA {torch.version.cuda}, {free / GIB:.0f} of {whole / GIB:.0f} GiB free"
        return Finding("gpu", "good", said)
    if shutil.which("nvidia-smi") and torch.version.cuda is None:
        advice = "this torch is built for CPUs only; get another from https://pytorch.org/get-started/locally"
        return Finding("gpu", "note", "there is one that torch cannot use", advice)
    if shutil.which("nvidia-smi"):
        advice = f"this torch needs a driver for CUDA {torch.version.cuda}; nvidia-smi says which one is there"
        return Finding("gpu", "note", "there is one that torch does not see", advice)
    return Finding("gpu", "note", "none; runs use the CPU")


def _cores() -> Finding:
    mine, all_ = cores(), os.cpu_count() or 1
    if mine < all_:
        return Finding("cores", "note", f"{mine} of {all_} may be used", "a container or taskset holds this one back")
    return Finding("cores", "good", f"{mine}")


def _memory() -> Finding:
    try:
        table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free, whole = (int(table[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return Finding("memory", "note", "cannot be told on this system")
    said = f"{free / GIB:.1f} of {whole / GIB:.1f} GiB are free"
    if free < LITTLE:
        return Finding("memory", "note", said, "use fewer engine.workers, or a smaller data set")
    return Finding("memory", "good", said)


def _runs() -> Finding:
    here = Path("runs") if Path("runs").is_dir() else Path()
    return _writable("runs", here.absolute(), "choose another folder with --out")


def _data() -> Finding:
    home = store.folder()
    there = next(path for path in (home, *home.parents) if path.exists())
    found = _writable("data folder", there, "set FEDSTRATA_DATA to a folder that can be written")
    held = sum(1 for path in home.glob("*/about.json")) if home.is_dir() else 0
    said = f"{home}: {held} data sets; {found.said.partition(': ')[2]}"
    advice = found.advice or ("" if held else "digits is always there; get others with: fedstrata data fetch NAME")
    return found._replace(said=said, advice=advice)


def _writable(what: str, place: Path, advice: str) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding(what, "bad", f"{place}: cannot be written: {error.strerror or error}", advice)
    said = f"{place}: {free / GIB:.1f} GiB of disk are free"
    return Finding(what, "good", said) if free > LITTLE else Finding(what, "note", said, f"make room, or {advice}")


def _ports() -> Iterator[Finding]:
    for port, what in PORTS.items():
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                advice = f"another program has it, or {what} is running; take another with --port"
                yield Finding(f"port {port}", "note", f"taken; {what} wants it", advice)
            else:
                yield Finding(f"port {port}", "good", f"free, for {what}")


def _extras(needed: tuple[str, ...]) -> Iterator[Finding]:
    for extra, (use, modules) in EXTRAS.items():
        missing = [name for name in modules if find_spec(name) is None]
        if extra == "timm" and not missing and (broken := _broken("timm")):
            yield Finding("[timm]", "bad" if extra in needed else "note", f"cannot be imported: {broken}", MISFIT)
        elif not missing:
            yield Finding(f"[{extra}]", "good", f"{use} ({_version(modules[0])})")
        else:
            state: Literal["note", "bad"] = "bad" if extra in needed else "note"
            advice = f"pip install 'fedstrata[{extra}]'"
            yield Finding(f"[{extra}]", state, f"not installed ({', '.join(missing)}): {use}", advice)


def _broken(module: str) -> str:
    """Say why a module cannot be imported: torchvision, which timm needs, is compiled against one torch."""
    try:
        import_module(module)
    except Exception as error:  # whatever a library raises that does not fit
        return f"{type(error).__name__}: {error}"
    return ""


def _version(module: str) -> str:
    try:
        return f"{module} {version(module.replace('_', '-'))}"
    except PackageNotFoundError:  # it is called otherwise
        return module
