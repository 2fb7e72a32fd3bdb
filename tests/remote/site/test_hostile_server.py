"""Attacks of a server on its sites: it wants to read their files, and to run programs of its own there.

Requests are written as a hostile server writes them, without our own client side, which would refuse to.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from in_process_sites import SITES, SMALL, hosts, introduce

from fedstrata import RequestError
from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Section
from fedstrata.config.travel import from_server, parts_of, path_keys, to_sites
from fedstrata.core import origin, registry
from fedstrata.core.options import LocalPath
from fedstrata.core.server_parts import Selector
from fedstrata.data.devices import read_trace
from fedstrata.privacy.frames import split
from fedstrata.remote.protocol import build_request, to_json
from fedstrata.remote.site.policy.rules import SitePolicy

SECRET = "machine example.org login root password hunter2"
PLACE = {"run": "r", "client": 1, "sites": list(SITES), "classes": list(range(10)), "speed": 1.0}
WATCHED: list[tuple[str, str]] = []  # what Python opened and imported
LISTENING: list[bool] = []


def _listen(event: str, args: tuple[Any, ...]) -> None:
    if LISTENING and event in ("open", "import"):
        WATCHED.append((event, str(args[0])))


sys.addaudithook(_listen)  # for good; it only notes while somebody listens


@pytest.fixture
def watched():
    WATCHED.clear()
    LISTENING.append(True)
    yield WATCHED
    LISTENING.clear()


@pytest.fixture(scope="module")
def secret(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("home") / "netrc_of_the_owner"
    path.write_text(f"{SECRET}\n" * 3)
    return path


@pytest.fixture(scope="module")
def bonn():
    host = hosts(SMALL)["bonn"]
    host.answer(introduce())  # its data are read now
    return host


def put(table: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy with a dotted key set."""
    first, _, rest = key.partition(".")
    if rest and first.isdigit():
        raise AssertionError(key)
    return {**table, first: put(dict(table.get(first) or {}), rest, value) if rest else value}


def begun(host, experiment: Any) -> bytes:
    return host.answer(build_request("begin", to_json(PLACE), to_json(experiment)))


def takes_text(hint: Any) -> bool:
    if hint is str or hint is Any or (isinstance(hint, type) and issubclass(hint, Path)):
        return True
    return get_origin(hint) is not Literal and any(map(takes_text, get_args(hint)))


def keys_of_tables(section: type[Section] = Experiment, prefix: str = "") -> list[str]:
    """Return every key of the experiment's own tables that takes text."""
    found = []
    for name, field in section.model_fields.items():
        inner = [k for k in (field.annotation, *get_args(field.annotation)) if isinstance(k, type)]
        tables = [kind for kind in inner if issubclass(kind, Section)]
        for kind in tables:
            found += keys_of_tables(kind, f"{prefix}{name}.")
        if not tables and takes_text(field.annotation):
            found.append(f"{prefix}{name}")
    return found


PLACES = {  # where a part of a stage is named
    "schedules": "method.schedule",
    "drivers": "method.driver",
    "selectors": "method.selector",
    "samplers": "method.sampler",
    "combiners": "method.combiner",
    "server_steps": "method.server_step",
    "optimizers": "train.optimizer",
    "lr_schedules": "train.lr_schedule",
    "partitions": "data.partition",
}
BY_NAME = {"datasets": "data", "models": "model", "engines": "engine", "methods": "method"}
LISTS = {
    "corrections": "method.corrections",
    "noises": "data.noise",
    "trackers": "track",
    "metrics": "train.evaluate.metrics",
}


def naming(stage: str, name: str, **options: Any) -> dict[str, Any]:
    """Return an experiment that names a part."""
    if stage in PLACES:
        return put({}, PLACES[stage], {"kind": name, **options})
    if stage in LISTS:
        return put({}, LISTS[stage], [{"kind": name, **options}])
    return {BY_NAME[stage]: {"kind" if stage == "engines" else "name": name, **options}}


def options_that_take_text() -> list[tuple[str, str, str]]:
    """Return every option of every registered part that takes text or a path."""
    found = []
    for stage in registry.STAGES:
        for name in registry.names(stage):
            part = registry.find(stage, name, stage)
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                hints = get_type_hints(part, include_extras=True)
                found += [(stage, name, f.name) for f in dataclasses.fields(part) if takes_text(hints[f.name])]
    return found


# ---- files -----------------------------------------------------------------------------------------------------------


def test_every_stage_is_attacked():
    assert {*PLACES, *BY_NAME, *LISTS} == set(registry.STAGES)
    assert ("datasets", "own", "path") in options_that_take_text()
    assert "system.availability.trace" in keys_of_tables()


@pytest.mark.parametrize("key", keys_of_tables())
def test_no_key_of_an_experiment_opens_a_file_at_a_site(bonn, secret, watched, key):
    experiment = put({}, key, str(secret))
    if key == "system.availability.trace":
        experiment["system"]["availability"]["kind"] = "trace"
    reply = begun(bonn, experiment)
    assert SECRET.encode() not in reply
    assert not [what for event, what in watched if what == str(secret)]
    if key in path_keys():
        assert split(reply)[0] != b"done"


@pytest.mark.parametrize(("stage", "name", "option"), options_that_take_text())
def test_no_option_of_a_part_opens_a_file_at_a_site(bonn, secret, watched, stage, name, option):
    reply = begun(bonn, naming(stage, name, **{option: str(secret)}))
    assert SECRET.encode() not in reply
    assert not [what for event, what in watched if what == str(secret)]


def test_options_that_take_text_are_told_apart_from_paths():
    """Whoever adds an option that takes text says whether it names a file (`LocalPath`), or adds it here."""
    words = {("partitions", "concentrated-domain", "domain")}
    words |= {("datasets", "own", option) for option in ("label", "client", "drop")}
    words |= {
        ("datasets", "hf", option) for option in ("hub", "config", "train", "test_split", "sample", "label", "client")
    }
    words |= {("engines", "ray", "address")}  # sites have engines of their own
    words |= {("models", "timm", "architecture")}  # of timm's list; a folder or an address is refused
    words |= {("trackers", "mlflow", option) for option in ("uri", "experiment")}  # `track` never travels
    words |= {("trackers", "wandb", option) for option in ("project", "entity")}
    paths = {
        (stage, name, option)
        for stage, name, option in options_that_take_text()
        if option in origin.path_options(registry.find(stage, name, stage))
    }
    assert set(options_that_take_text()) - paths == words
    assert path_keys() == ["model.init", "system.availability.trace", "privacy.enclave.certificates"]
    named = {"data.name", "model.name", "method.name", "engine.kind", "data.fingerprint", "model.head", "name"}
    parts = {f"method.{stage}" for stage in Experiment.of().method.model_dump()} | {
        "train.optimizer",
        "train.lr_schedule",
        "train.evaluate.metrics",
    }
    words = {
        *named,
        *parts,
        "data.partition",
        "data.noise",
        "track",
        "train.clients_per_round",
        "train.evaluate.best",
        "privacy.enclave.measurement",
    }
    assert set(keys_of_tables()) - set(path_keys()) == words


@dataclasses.dataclass(frozen=True)
class FromFile(Selector):
    """Selects whom a file names; a part that somebody's package could bring."""

    table: LocalPath = "nobody.csv"
    folder: Path | None = None

    def select(self, state, view):
        return list(view.client_info.holders)


def test_a_part_whose_options_name_files_travels_without_them_or_not_at_all():
    kind = f"{__name__}:FromFile"
    assert origin.path_options(FromFile) == {"table", "folder"}
    told = to_sites(Experiment.of(None, **{"method.selector": FromFile()}))
    assert told["method"]["selector"] == {"kind": kind}
    assert from_server(told, [kind]).method.selector["table"] == "nobody.csv"
    with pytest.raises(RequestError, match=r"method\.selector\.table is a path on this machine"):
        to_sites(Experiment.of(None, **{"method.selector": FromFile("mine.csv")}))
    for options in ({"table": "/etc/passwd"}, {"folder": "/etc"}):
        with pytest.raises(
            RequestError, match=r"method\.selector\.\w+ is a path, and no machine names files of another"
        ):
            from_server({"method": {"selector": {"kind": kind, **options}}}, [kind])


def test_what_travels_builds_the_same_run_and_names_no_file(tmp_path):
    own = {"model.init": str(tmp_path / "model.safetensors"), "system.availability.rate": 0.5, "data.name": "digits"}
    experiment = Experiment.of(None, **SMALL, **own)
    told = to_sites(experiment)
    assert set(told) == {"model", "method", "train", "privacy", "trust", "engine"}
    assert str(tmp_path) not in json.dumps(told)
    there = from_server(told)
    assert (there.method, there.train, there.engine.precision) == (experiment.method, experiment.train, "fp64")
    assert there.model.model_copy(update={"init": experiment.model.init}) == experiment.model
    assert to_sites(there) == told


@pytest.mark.parametrize("table", ["data", "system", "compare", "paper", "name", "nonsense"])
def test_a_server_decides_nothing_else(bonn, table):
    reply = begun(bonn, {**to_sites(Experiment.of(None, **SMALL)), table: {}})
    assert f"{table} is not what a server decides".encode() in reply


def test_an_error_that_quotes_a_file_stays_at_the_site(bonn, monkeypatch, caplog):
    """Whatever a site's own reading raises, only its kind leaves."""

    def broken(*_):
        raise RequestError(f"line 3: {SECRET}")

    monkeypatch.setattr(bonn, "_load", broken)
    reply = bonn.answer(introduce())
    assert SECRET.encode() not in reply
    assert b"RequestError (the site's own log says where)" in reply
    assert SECRET in caplog.text


def test_labels_are_not_named_to_a_server_that_asks_for_others(bonn):
    """A server that masks labels would otherwise hear them in the refusal."""
    reply = bonn.answer(build_request("introduce", to_json({**told_of(bonn), "classes": ["none of them"]})))
    assert b"this site has 10 labels that the run does not know" in reply


def told_of(host) -> dict[str, Any]:
    return {"run": "r", "experiment": to_sites(Experiment.of(None, **SMALL))}


def test_a_trace_that_is_none_is_not_quoted(tmp_path):
    for text in (SECRET, f"0,1,2\n{SECRET}", "0,1\n"):
        (tmp_path / "trace.csv").write_text(text)
        with pytest.raises(RequestError) as error:
            read_trace(str(tmp_path / "trace.csv"))
        assert "hunter2" not in str(error.value)


# ---- programs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cleanup(tmp_path, monkeypatch):
    """A module in the folder that the site was started in."""
    (tmp_path / "cleanup.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nx = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "ran"
    sys.modules.pop("cleanup", None)


@pytest.mark.parametrize("stage", registry.STAGES)
def test_no_part_that_is_not_registered_is_imported_at_a_site(bonn, cleanup, watched, stage):
    reply = begun(bonn, naming(stage, "cleanup:x"))
    assert split(reply)[0] != b"done"
    assert not cleanup.exists()
    assert not [what for event, what in watched if "cleanup" in what]


def test_an_introduction_imports_nothing_either(bonn, cleanup, watched):
    told = {"run": "r", "experiment": naming("selectors", "cleanup:x")}
    reply = bonn.answer(build_request("introduce", to_json(told)))
    assert b'method.selector.kind = "cleanup:x" is not allowed' in reply
    assert not cleanup.exists()


def test_a_part_that_the_owner_allows_is_loaded_and_no_other_of_its_module(bonn, tmp_path):
    kind, other = f"{__name__}:FromFile", f"{__name__}:Experiment"
    allowed = hosts(SMALL, policy=lambda name: SitePolicy(parts=(kind,)))["bonn"]
    experiment = to_sites(Experiment.of(None, **SMALL, **{"method.selector": FromFile()}))
    assert split(begun(allowed, experiment))[0] == b"done"
    assert b"is not allowed" in begun(bonn, experiment)
    assert b"is not allowed" in begun(allowed, put(experiment, "method.selector", {"kind": other}))


def test_a_registered_part_by_its_path_is_registered():
    path = registry.names("selectors")["random"]
    assert [part.name for part in parts_of(from_server(naming("selectors", path))) if part.stage == "selectors"] == [
        "random"
    ]
