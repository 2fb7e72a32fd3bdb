"""Everything in fedstrata that reads what somebody else may have written, with a sound example of each."""

from __future__ import annotations

import io
import json
import logging
import shutil
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

import fedstrata
from campaigns._mutations import mutate_json
from campaigns._reader import Reader, of, written
from campaigns._site_readers import site_readers
from fedstrata.board.index import RunIndex
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.config.model_info import read_model
from fedstrata.core.messages import Report, Task
from fedstrata.core.storage.event_lines import read_events
from fedstrata.core.wire import pack_report, pack_task
from fedstrata.data.files import Files
from fedstrata.data.formats.idx import read_idx
from fedstrata.data.formats.images import read_image
from fedstrata.data.formats.wfdb import read_annotations, read_header
from fedstrata.data.sets.own import Own
from fedstrata.privacy.enclave.policy import Terms
from fedstrata.privacy.frames import Frame, open_frame, split
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.remote.introduction import Introduction
from fedstrata.remote.protocol import build_reply, build_request, read_reply, read_values, to_json, within
from fedstrata.remote.server.checks import check_report, read_all_reduce
from fedstrata.remote.server.site_registry import read_sites
from fedstrata.remote.site.site_server import SiteServer
from fedstrata.remote.site.source import only
from fedstrata.report.gather import gather
from fedstrata.report.page import page
from fedstrata.report.run_data import RunData
from fedstrata.runs.checkpoints import Checkpoints
from fedstrata.runs.folder import Run
from fedstrata.runs.session import build_session
from fedstrata.testing import tiny_federation


def readers(folder: Path) -> list[Reader]:
    """Return all of them; `folder` is for files."""
    logging.getLogger("fedstrata").setLevel(logging.CRITICAL)
    return [*_messages(), *_run_folders(folder), *_data(folder), *site_readers(folder / "site")]


# ---- messages ------------------------------------------------------------------------------------------------------


def _messages() -> Iterator[Reader]:
    federation = tiny_federation()
    experiment = Experiment.of({"train": {"rounds": 1, "clients_per_round": "all"}, "model": {"hidden": [4]}})
    session = build_session(experiment, federation)
    plan, model = session.plan, session.initial_state().model
    own = only(federation, 1)
    site = SiteServer("a", lambda: own)
    about = {"run": "r", "client": 0, "sites": ["a"], "classes": list(federation.classes), "speed": 1.0}
    begin = build_request("begin", to_json(about), to_json(experiment.dump()))
    task = Task(0, 0, 0, down=model.wire())
    requests = [
        build_request("introduce", to_json({"named": True, "needs": ["counts"], "classes": list(federation.classes)})),
        begin,
        within("r", build_request("task", pack_task(task), b"", b"")),
        within("r", build_request("evaluate", pack_task(task))),
        within("r", build_request("sum", b"advertise", to_json({"members": [0], "job": "00" * 16}), b"")),
    ]

    def answer(data: bytes) -> None:
        site.answer(begin)
        if not isinstance(site.answer(data), bytes):
            raise TypeError("a site answers every request")

    yield Reader("requests at a site", of(*requests), answer, 0.2)
    report = pack_report(Report(0, 3, aggregated={"update": model.params}, metrics={"m": 1.0}))
    yield Reader("reports at the server", of(report), lambda d: check_report(d, task, plan, model.params))
    yield Reader("replies at the server", of(build_reply(b"report", report)), lambda d: read_reply(d, 2))
    brought = pack_task(task)
    yield Reader("what sites bring to meetings", of(brought), lambda d: read_all_reduce({"a": d, "b": brought}, False))
    facts = to_json(Introduction.of(own).dump())
    yield Reader("introductions of sites", of(facts, tables=True), lambda d: Introduction.read(read_values(d), "a"))
    identity = Identity.new(bytes)
    keys = KeyDirectory(Identity.new(lambda n: bytes([1] * n)).public, (identity.public,))
    signed = Frame("hello", bytes(16), 0, (b"one", b"two")).sign(identity)
    yield Reader("signed frames", of(signed), lambda d: (open_frame(d, keys, "hello", bytes(16), 0), split(d)))
    terms = Terms(3, 2, 5).written()
    yield Reader("terms of an enclave", of(terms, tables=True), Terms.read)
    if find_spec("flwr") is not None and find_spec("grpc") is not None:
        yield from _over_flower()


def _over_flower() -> Iterator[Reader]:
    from fedstrata.remote.flower.framing import FROM_SITE, HEAD, Kind, parcels  # noqa: PLC0415 - an extra
    from fedstrata.remote.flower.invitation import STREAM, Invitation  # noqa: PLC0415

    told = {"address": "a:1", "authority": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}
    told |= {"token": "0" * 64, "site": "a", "run": "r", "grace": 1.0}
    yield Reader(
        "invitations to a stream", of(json.dumps(told).encode(), tables=True), lambda d: Invitation.read(STREAM + d)
    )
    stream = HEAD.pack(Kind.REPLY, 1, 5) + b"hello" + HEAD.pack(Kind.FAILURE, 2, 3) + b"why"

    def hear(data: bytes) -> None:
        size = HEAD.size + 5
        list(parcels([data[at : at + size] for at in range(0, len(data), size)], FROM_SITE, lambda _: 1 << 20))

    yield Reader("frames of a stream", of(stream), hear)


# ---- run folders ---------------------------------------------------------------------------------------------------


def _run_folders(folder: Path) -> Iterator[Reader]:
    run = fedstrata.train(
        {"model": {"hidden": [4]}}, method="flips", overrides={"train.rounds": 2}, out=folder / "runs" / "sound"
    )
    toml = (run.path / "experiment.toml").read_bytes()
    yield Reader("experiments", of(toml), written(folder / "experiment.toml", Experiment.of), 0.6)
    events = (run.path / "events.jsonl").read_bytes()
    lines = [line + b"\n" for line in events.splitlines()]

    def some_lines(rng: Random) -> bytes:
        changed = list(lines)
        at = rng.randrange(len(changed))
        changed[at] = mutate_json(changed[at], rng) + b"\n"
        return b"".join(changed)

    yield Reader("events", some_lines, read_events)
    yield Reader("events as arrays", some_lines, _in_run(run, folder / "arrays", "events.jsonl", _as_arrays), 0.2)
    yield Reader("experiments on the board", of(toml), _in_run(run, folder / "board1", "experiment.toml", _row), 0.3)
    summary = (run.path / "summary.json").read_bytes()
    tables = of(summary, tables=True)
    yield Reader("summaries on the board", tables, _in_run(run, folder / "board2", "summary.json", _row), 0.3)
    yield Reader("summaries in reports", tables, _in_run(run, folder / "report1", "summary.json", _page), 0.005)
    yield Reader("events in reports", some_lines, _in_run(run, folder / "report2", "events.jsonl", _page), 0.005)
    yield Reader("models", of((run.path / "model.safetensors").read_bytes()), written(folder / "m", _read_model), 0.5)
    yield from _checkpoints(run, folder / "checkpoints")
    sites = json.dumps({"run": "r", "sites": {"a": Introduction.of(only(tiny_federation(), 1)).dump()}}).encode()
    yield Reader(
        "sites of a run", of(sites, tables=True), written(folder / "s" / "sites.json", lambda p: read_sites(p.parent))
    )


def _as_arrays(path: Path) -> None:
    data = RunData.read(path)
    _ = data.column("accuracy"), data.recall, data.client_accuracy, data.participation(), data.classes, data.rare


def _row(path: Path) -> None:
    index = RunIndex(path)
    index.look()
    json.dumps([vars(row) for row in index.rows.values()], allow_nan=False).encode()


def _page(path: Path) -> None:
    page(gather([path])).encode()


def _read_model(path: Path) -> None:
    read_model(path, "model.init")


def _checkpoints(run: Run, folder: Path) -> Iterator[Reader]:
    copy = Run(shutil.copytree(run.path, folder))
    entry = json.loads((copy.checkpoints.path / "CURRENT").read_text())
    manifest = copy.checkpoints.path / entry["file"]
    session = build_session(Experiment.of(copy.path / "experiment.toml"), build_federation(Experiment.of()))
    like = session.initial_state(init=False)

    def read(data: bytes) -> None:
        manifest.write_bytes(data)
        current = {"file": manifest.name, "sha256": sha256(data).hexdigest()}
        (copy.checkpoints.path / "CURRENT").write_text(json.dumps(current))
        found = copy.checkpoints.manifest(events=int, seconds=int | float, experiment=dict, identity=dict)
        assert found is not None
        with session.plan.naming_states():
            copy.checkpoints.read(found, like)

    yield Reader("checkpoints", of(manifest.read_bytes(), tables=True), read, 0.3)
    tensors = copy.checkpoints.path / json.loads(manifest.read_text())["server"]["file"]
    yield Reader("tensors of checkpoints", of(tensors.read_bytes()), written(folder / "t", _load), 0.5)


def _load(path: Path) -> None:
    Checkpoints(path.parent).client({"file": path.name, "sha256": sha256(path.read_bytes()).hexdigest()})


# ---- data files ----------------------------------------------------------------------------------------------------


def _data(folder: Path) -> Iterator[Reader]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).round(3), np.arange(40) % 4
    rows = ["a,b,c,label,client", *(f"{a},{b},{c},l{k},c{k % 3}" for (a, b, c), k in zip(x, y, strict=True))]
    own = folder / "own"
    yield Reader("CSV", of("\n".join(rows).encode()), written(own / "x.csv", _own(client="client")), 0.3)
    arrays = io.BytesIO()
    np.savez_compressed(arrays, x=x, y=y)
    yield Reader("npz", of(arrays.getvalue()), written(own / "x.npz", _own()), 0.5)
    yield from _images(folder, rng)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.csv", "\n".join(rows))
    yield Reader("zip archives", of(archive.getvalue()), written(folder / "x.zip", _all_files))
    idx = bytes([0, 0, 8, 3]) + np.array([2, 3, 4], ">i4").tobytes() + bytes(24)
    yield Reader("idx", of(idx), lambda d: read_idx(d, "x"))
    header = b"100 2 360 10\n100.dat 212 200 11 1024 995 -22131 0 MLII\n100.dat 212 200 11 1024 1011 20052 0 V5\n"
    yield Reader("headers of signals", of(header), lambda d: read_header(d, "x"))
    yield Reader("annotations of signals", of(bytes(range(64)) + b"\0\0"), lambda d: read_annotations(d, "x"))
    leaf = {"users": ["u", "v"], "num_samples": [2, 2], "user_data": {}}
    leaf["user_data"] = {user: {"x": [[0.1, 0.2]] * 4, "y": [0, 1, 0, 1]} for user in ("u", "v")}
    leaves = written(folder / "leaf" / "train" / "all.json", lambda p: _own()(p.parent.parent))
    yield Reader("LEAF", of(json.dumps(leaf).encode(), tables=True), leaves, 0.3)
    if find_spec("pyarrow") is not None:
        from pyarrow import parquet, table  # noqa: PLC0415 - an extra

        columns = io.BytesIO()
        parquet.write_table(table({"a": x[:, 0], "b": x[:, 1], "label": y}), columns)
        yield Reader("Parquet", of(columns.getvalue()), written(own / "x.parquet", _own()), 0.2)


def _images(folder: Path, rng: np.random.Generator) -> Iterator[Reader]:
    pixels = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
    for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"):
        data = io.BytesIO()
        pixels.save(data, kind)
        yield Reader(f"images: {kind}", of(data.getvalue()), lambda d: read_image(d, 8, 3), 0.7)


def _own(**options: Any) -> Callable[[Path], Any]:
    return lambda path: Own(path=str(path), **options).load()


def _all_files(path: Path) -> None:
    files = Files(path)
    for name in files.names:
        files.read(name)


def _in_run(run: Run, folder: Path, name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """Return a reader of bytes that take the place of one file of a run."""
    copy = shutil.copytree(run.path, folder)
    return written(copy / name, lambda path: read(path.parent))
