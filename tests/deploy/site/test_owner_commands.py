"""`fedstrata deploy approve` and `audit`, and the rules of a site on its command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from in_process_sites import SMALL

from fedstrata.config.experiment import Experiment
from fedstrata.config.travel import to_sites
from fedstrata.core.errors import RequestError
from fedstrata.deploy import state
from fedstrata.deploy.site import client
from fedstrata.remote.protocol import PendingError, PolicyError
from fedstrata.remote.site import service
from fedstrata.remote.site.policy.approvals import Approvals
from fedstrata.remote.site.policy.audit import AuditLog, verify
from fedstrata.remote.site.policy.gate import AUDIT, RUNS
from fedstrata.remote.site.policy.rules import SitePolicy


@pytest.fixture
def berlin(home):
    """A site at which one run waits, and from which two replies left."""
    folder = state.private(state.of_site("berlin"))
    experiment = to_sites(Experiment.of(None, **SMALL))
    with pytest.raises(PendingError):
        Approvals(folder / RUNS).check("run-1", experiment)
    log = AuditLog(folder / AUDIT)
    log.append("introduce", b"hello", run="run-1")
    log.append("task", b"", run="run-1", refused="its owner refused this run")
    return folder, experiment


def test_an_owner_sees_what_waits_and_says_yes_or_no(cli, berlin):
    folder, experiment = berlin
    code, out, _ = cli("deploy", "approve")
    assert code == 0
    assert "fedavg" in out
    assert "1 of 1 runs wait for your word" in out
    (proposal,) = json.loads(cli("deploy", "approve", "--json")[1])
    assert (proposal["word"], proposal["run"]) == ("asked", "run-1")
    code, shown, _ = cli("deploy", "approve", proposal["id"], "--show")
    assert tomllib.loads(shown) == json.loads(json.dumps(experiment))
    assert Approvals(folder / RUNS).all()[0].word == "asked", "looking is no word"
    assert cli("deploy", "approve", proposal["id"][:4])[1] == f"run {proposal['id'][:12]} is approved\n"
    Approvals(folder / RUNS).check("run-1", experiment)
    assert cli("deploy", "approve", proposal["id"], "--refuse")[0] == 0
    with pytest.raises(PolicyError, match="its owner refused"):
        Approvals(folder / RUNS).check("run-1", experiment)


def test_what_a_server_wrote_does_not_move_the_owners_cursor(cli, home):
    """Escapes that Python and TOML let through: C1 controls, and marks that turn the direction of text."""
    folder, escapes = state.private(state.of_site("berlin")), "\x1b[2J \x9b2J \u202e"
    wish = to_sites(Experiment.of(None, **SMALL))
    hidden = {**wish, "privacy": {**wish["privacy"], "enclave": {"measurement": escapes}}}
    with pytest.raises(PendingError):
        Approvals(folder / RUNS).check("run-1", hidden)
    AuditLog(folder / AUDIT).append("task", b"", run=escapes)
    (id,) = [proposal.id for proposal in Approvals(folder / RUNS).all()]
    for command in (["approve", id, "--show"], ["approve"], ["audit"], ["audit", "--lines", "5"]):
        code, out, _ = cli("deploy", *command)
        assert code == 0
        assert all(sign.isprintable() or sign == "\n" for sign in out), command


def test_an_audit_shows_what_left_and_finds_changes(cli, berlin):
    folder, _ = berlin
    code, out, _ = cli("deploy", "audit", "--lines", "1")
    newest = verify(folder / AUDIT)[1].newest
    assert code == 0
    assert "2 replies left" in out
    assert newest in out
    assert "the chain is whole" in out
    assert '"refused": "its owner refused this run"' in out
    told = json.loads(cli("deploy", "audit", "--json", "--run", "run-1", "--known", newest)[1])
    assert (told["lines"], told["wrong"], len(told["replies"])) == (2, None, 2)
    path = folder / AUDIT
    path.write_bytes(path.read_bytes().replace(b'"bytes": 5', b'"bytes": 6'))
    code, out, _ = cli("deploy", "audit")
    assert code == 1
    assert "NOT WHOLE: line 1 is not the one that was written" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["approve", "ffff"], 'there is no run "ffff" here'),
        (["approve", "--refuse"], "say which run"),
        (["approve", "--site", "paris"], '--site = "paris" has never run here; sites of this machine: berlin'),
        (["audit", "--site", "../x"], "--site"),
    ],
)
def test_a_wrong_word_ends_with_code_2(cli, berlin, args, said):
    code, _, err = cli("deploy", *args)
    assert code == 2
    assert said in err


def test_a_machine_with_several_sites_wants_a_name(cli, berlin):
    state.private(state.of_site("lyon"))
    code, _, err = cli("deploy", "audit")
    assert (code, "--site is required; sites of this machine: berlin, lyon" in err) == (2, True)


def test_a_site_reads_its_policy_before_anything_else(cli, flower_is_there, tmp_path):
    words = ("deploy", "client", "--insecure", "--server", "h:8000", "--site", "a", "--data", "digits")
    (tmp_path / "site.toml").write_text('approval = "perhaps"\n')
    code, _, err = cli(*words, "--policy", str(tmp_path / "site.toml"))
    assert code == 2
    assert 'site.toml: approval = "perhaps" is not valid; allowed: "none" or "ask"' in err
    assert cli(*words, "--policy", "nowhere.toml")[0] == 2
    (tmp_path / "site.toml").write_text('servers = ["fl.example.org"]\n')
    code, _, err = cli(*words, "--policy", str(tmp_path / "site.toml"))
    assert code == 2
    assert '--server = h:8000: its policy refuses servers = "h:8000"; allowed: "fl.example.org"' in err
    assert not (state.of_site("a") / "lock").exists()


def test_a_site_s_process_gets_its_resources_and_starts_apart_from_the_folder(monkeypatch):
    here = client.FederationClient("a", "h:1", None, {"name": "digits"}, 0, policy=SitePolicy(resources={"threads": 2}))
    assert client.PROCESS[1] == "-P"
    started = {}

    class Household:
        folder = state.of_site("a")

        def start(self, name, command, log, env):
            started.update(command=command, env=env)
            raise RequestError("enough")

    monkeypatch.setattr("pathlib.Path.write_text", lambda *_: None)
    checked = client.CheckedClient.read(client.CheckedClient.of(here).write())
    with pytest.raises(RequestError, match="enough"):
        client.on_demand(checked, Household(), state.of_site("a") / "site").answer(b"")
    assert started["command"][:2] == client.PROCESS[:2]
    assert (started["env"]["OMP_NUM_THREADS"], started["env"]["PYTHONSAFEPATH"]) == ("2", "1")


def test_a_site_s_process_remarks_on_its_data_once_and_again_when_they_are_others(tmp_path):
    table = tmp_path / "own.csv"
    table.write_text("a,label\n1,x\n2,y\n")
    here = client.FederationClient("a", "h:1", None, {"name": "own", "path": str(table)}, 0)
    asked = []

    class Household:
        folder = state.of_site("a")

        def start(self, name, command, log, env):
            asked.append(json.loads(Path(command[-1]).read_text())["remarks"])
            raise RequestError("enough")

    site = client.on_demand(client.CheckedClient.of(here), Household(), tmp_path / "site")
    for more in ("", "", "3,x\n", ""):
        with table.open("a") as file:
            file.write(more)
        with pytest.raises(RequestError, match="enough"):
            site.answer(b"request")
    assert asked == [True, False, True, False]


@pytest.mark.parametrize("remarks", [True, False])
def test_what_a_site_s_process_remarks_goes_to_its_owner(remarks, tmp_path, monkeypatch, caplog):
    table = tmp_path / "own.csv"
    table.write_text("\n".join(["patient_id,dose,label", *(f"{i},{i % 3},{i % 2}" for i in range(20))]))
    data = {"data": {"name": "own", "path": str(table)}}
    config = {"site": "a", "server": "h:1", "folder": str(tmp_path), "policy": {}, "enclave": {}, "data": data}
    monkeypatch.setattr(service, "serve", lambda answer, socket: None)
    service.serve_site(config | {"socket": str(tmp_path / "s"), "remarks": remarks})
    said = [record.getMessage() for record in caplog.records if "patient_id" in record.getMessage()]
    assert len(said) == remarks
    assert all(line.startswith("site a: patient_id: every row has its own value") for line in said)
