"""[privacy] at real sites: the same models as in a simulation, and nothing on the wire that should not be there."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process_sites import SITES, SMALL, Here, Restartable, at_sites, hosts, introduce, model, with_keys

from fedstrata import FedstrataError, RequestError, train
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.wire import unpack, unpack_report
from fedstrata.deploy.authority import Authority
from fedstrata.deploy.keys import make
from fedstrata.methods.schedules.lots import Lots
from fedstrata.privacy.labels.kept import OwnMap
from fedstrata.privacy.sums.fixed_point import TOO_LARGE
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import build_refusal, build_reply, read_reply, split
from fedstrata.remote.server.orders import RunControl
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.server.site_registry import read_sites
from fedstrata.remote.site.label_names import open_model
from fedstrata.remote.site.privacy import SitePrivacy
from fedstrata.runs.session import build_session

FOUR = (*SITES, "dresden")
PRF = {"privacy.labels": "prf"}
MASKED = {"privacy.aggregate": "masked", "privacy.encoding.bits": 64, "privacy.encoding.fraction": 40}
BATCH = {"method.name": "stratify-batch", "train.rounds": 1, "method.schedule.length": 60, "train.batch_size": 20}
NORMED = {"model.name": "mlp", "model.norm": "batch"}
FLIPS = {"method.name": "flips", "train.clients_per_round": 2}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "all"
    make(folder, FOUR)
    return folder


def away(keys, transport, overrides, out, sites=3, **how):
    experiment = Experiment.of(None, **(SMALL | overrides))
    return run_at_sites(transport, experiment, out, sites, credentials=Credentials.load(keys / "server"), **how)


def events(run, kind):
    return [event for event in run.events() if event["event"] == kind]


# ---- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FLIPS, BATCH | NORMED], ids=["flips", "stratify-batch"])
def test_sites_train_with_placeholders_and_name_no_label(tmp_path, keys, method):
    names = [f"label {i}" for i in range(10)]
    asked_for = SMALL | method | (MASKED if method is not FLIPS else {})
    heard = []

    def watched(name, kind, reply):
        heard.append(reply)
        return reply

    transport = with_keys(keys, asked_for, watched, having=lambda has: replace(has, classes=tuple(names)))
    there = away(keys, transport, asked_for | PRF, tmp_path / "there")
    assert not any(b"label " in reply for reply in heard)
    known = events(there, "labels_masked")[0]
    codes = {}
    for sealed, (name, host) in zip(known["sealed"], sorted(transport.hosts.items()), strict=True):
        codes |= (
            SitePrivacy(name, host.load, host.credentials)
            .open_map(bytes.fromhex(sealed), read_sites(there.path)[0])
            .own
        )
        assert name in known["sites"]
    order = np.array([codes[label] for label in names])
    assert sorted(order) == list(range(10))

    federation = build_federation(Experiment.of(None, **asked_for))
    here = train(
        overrides={k: v for k, v in asked_for.items() if k.split(".")[0] not in ("data", "model")}
        | ({} if method is FLIPS else {"method.schedule.replacement": True}),
        federation=federation.relabel(order),
        model=build_session(Experiment.of(None, **asked_for), federation, None).plan.local.build(),
        out=tmp_path / "here",
    )
    assert float((model(here) - model(there)).abs().max()) < 1e-9
    last = [events(run, "round")[-1] for run in (here, there)]
    assert last[1]["accuracy"] == pytest.approx(last[0]["accuracy"], abs=1e-12)
    assert last[1]["recall"] == pytest.approx([last[0]["recall"][i] for i in np.argsort(order)])
    assert b"placeholder 0" in (tmp_path / "there" / "model.safetensors").read_bytes()[:4000]


@pytest.mark.parametrize("norm", [{}, NORMED], ids=["plain", "batch norm"])
def test_sites_that_draw_lots_send_nothing_that_tells_how_many_they_drew(tmp_path, keys, norm, monkeypatch):
    asked, reports, brought, drawn = BATCH | PRF | MASKED | norm, {}, [], []
    asked |= {"method.schedule.clients": "binomial"}
    draw = Lots.draw

    def watched(name, kind, reply):
        if kind in ("task", "met"):
            _, what, data = split(reply)
            if what == b"report":
                report = unpack_report(data)
                reports.setdefault((report.samples, report.nbytes, report.received, report.work), []).append(report)
            else:
                brought.append(unpack(data))
        return reply

    monkeypatch.setattr(Lots, "draw", lambda self, context: drawn.append(draw(self, context)) or drawn[-1])
    run = away(keys, with_keys(keys, SMALL | asked, watched), asked, tmp_path / "run")
    (event,) = events(run, "schedule")
    assert (event["entries"], event["lost"], event["refused"]) == (60, 0, 0)
    assert len({len(positions) for positions in drawn}) > 2
    ((samples, _, _, work),) = reports  # all of them alike
    assert (samples, work) == (20, 0.0)
    assert all(np.isnan(r.loss) and np.isnan(r.update_norm) for own in reports.values() for r in own)
    assert bool(brought) == bool(norm)
    assert all(header["count"] == 0.0 for header, _ in brought)
    assert any("draw lots" in said for said in run.summary["privacy"]["server"])


@pytest.mark.parametrize(
    ("spelled", "said"),
    [
        (["Label 1 ", *(f"label {i}" for i in range(1, 10))], "site bonn: its labels cannot be masked"),
        ([f"LABEL {i}" for i in range(10)], "spells a label differently than another site: use one name"),
    ],
    ids=["at one site", "between sites"],
)
def test_a_label_in_two_spellings_does_not_become_two_placeholders(tmp_path, keys, caplog, spelled, said):
    names = tuple(f"label {i}" for i in range(10))
    transport = with_keys(keys, SMALL | BATCH | PRF, having=lambda has: replace(has, classes=names))
    load = transport.hosts["bonn"].load
    transport.hosts["bonn"] = transport.hosts["bonn"].restarted(lambda: replace(load(), classes=tuple(spelled)))
    with pytest.raises(RequestError, match=said) as refusal:
        away(keys, transport, BATCH | PRF, tmp_path / "run")
    assert not re.search(r"(?i)label \d", str(refusal.value))
    assert re.search(r"(?i)'label \d.*'label \d", caplog.text), "in the site's own log"


def test_a_site_s_predictions_have_names_and_the_server_s_have_not(tmp_path, keys):
    names = tuple(f"label {i}" for i in range(10))
    wish = BATCH | PRF | {"train.rounds": 2, "method.schedule.length": 600, "train.lr": 0.2}
    transport = with_keys(keys, SMALL | wish, having=lambda has: replace(has, classes=names))
    run = away(keys, transport, wish, tmp_path / "run")
    assert not any(b"label 7" in path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    assert run.classes == tuple(f"placeholder {i}" for i in range(10))
    right = tested = 0
    for name, host in transport.hosts.items():
        saved = open_model(run.path, keys / "sites" / name)
        assert sorted(saved.classes) == sorted(names)
        test = host.load().test.keep(host.load().test_split[0])
        said = np.array(saved.classes)[saved.logits(test.x * 16).argmax(1).numpy()]  # raw: digits are divided by 16
        right, tested = right + int((said == np.array(names)[test.y.numpy()]).sum()), tested + len(test)
    assert right / tested == pytest.approx(run.summary["accuracy"], abs=1e-12)
    strangers = keys.parent / "strangers"
    make(strangers, FOUR)
    for folder, why in ((keys / "server", "not those of a site"), (keys / "sites" / "dresden", "not those of a site")):
        with pytest.raises(RequestError, match=why):
            open_model(run.path, folder)
    with pytest.raises(RequestError, match="not one that this client sealed"):
        open_model(run.path, strangers / "sites" / SITES[0])
    still = SMALL | {"train.rounds": 1, "model.init": str(run.path / "model.safetensors")}
    with pytest.raises(RequestError, match=r"model\.init.*only the sites that trained it can name"):
        train(overrides=still, out=tmp_path / "open")
    with pytest.raises(RequestError, match="only they can go on with it"):
        train(overrides=still | PRF, out=tmp_path / "masked")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda entries: {place: "00" + entry[2:] for place, entry in entries.items()}, r"placeholder \d differently"),
        (lambda entries: dict(list(entries.items())[1:]), "aachen did not seal the names"),
        (lambda entries: entries | {"0": "no hex"}, "aachen did not seal the names"),
    ],
)
def test_a_site_that_seals_other_names_is_found_out(tmp_path, keys, change, why):
    def tamper(name, kind, reply):
        if kind == "labels" and name == SITES[0] and (fields := read_reply(reply, 3))[2]:
            return build_reply(*fields[:2], json.dumps(change(json.loads(fields[2]))).encode())
        return reply

    wish = PRF | {"train.rounds": 1, "data.partition": "iid"}
    with pytest.raises(RequestError, match=why):
        away(keys, with_keys(keys, SMALL | wish, tamper), wish, tmp_path / "run")


def test_a_model_goes_on_in_another_run_with_the_placeholders_it_was_trained_on(tmp_path, keys):
    wish = BATCH | PRF | {"train.rounds": 2, "method.schedule.length": 600, "train.lr": 0.2}
    transport = with_keys(keys, SMALL | wish)
    first = away(keys, transport, wish, tmp_path / "first")
    still = wish | {"train.rounds": 1, "train.lr": 1e-9, "model.init": str(tmp_path / "first" / "model.safetensors")}
    then = away(keys, transport, still, tmp_path / "then")
    assert first.summary["accuracy"] > 0.3  # far above chance: keys are drawn, and the placeholders with them
    assert then.summary["accuracy"] == pytest.approx(first.summary["accuracy"], abs=0.01)
    opened = [open_model(run.path, keys / "sites" / SITES[1]).classes for run in (first, then)]
    assert opened[0] == opened[1] != tuple(range(10))
    third = away(keys, transport, still | {"model.init": str(tmp_path / "then" / "model.safetensors")}, tmp_path / "3")
    assert third.summary["accuracy"] == pytest.approx(first.summary["accuracy"], abs=0.01)
    strangers = keys.parent / "others"
    make(strangers, FOUR)
    with pytest.raises(RequestError, match="cannot go on with the placeholders"):
        away(strangers, with_keys(strangers, SMALL | wish), still, tmp_path / "strangers")
    here = train(overrides=SMALL | wish, out=tmp_path / "here")
    elsewhere = still | {"model.init": str(here.path / "model.safetensors")}
    with pytest.raises(RequestError, match="other clients than these sites"):
        away(keys, with_keys(keys, SMALL | wish), elsewhere, tmp_path / "elsewhere")


def test_a_run_with_masked_labels_goes_on_though_server_and_sites_were_restarted(tmp_path, keys):
    wish = BATCH | PRF | {"train.rounds": 2}

    def watch(event):
        if event["event"] == "round" and event["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        away(keys, with_keys(keys, SMALL | wish), wish, tmp_path / "run", watch=watch)
    run = away(keys, with_keys(keys, SMALL | wish), wish, tmp_path / "run", resumed=True)
    assert len(events(run, "labels_masked")) == 1
    assert run.summary["rounds"] == 2


def test_a_site_that_fails_while_labels_are_masked_is_left_out(tmp_path, keys):
    def tamper(name, kind, reply):
        tamper.labels += (name, kind) == ("bonn", "labels")
        return build_refusal("broken") if (name, kind) == ("bonn", "labels") and tamper.labels == 3 else reply

    tamper.labels = 0
    wish = PRF | {"train.rounds": 1, "data.clients": 4}
    run = away(keys, with_keys(keys, SMALL | wish, tamper, FOUR), wish, tmp_path / "run")
    assert [e["left_out"] for e in events(run, "label_masking_repeated")] == [[1]]
    assert [(e["site"], e["why"]) for e in events(run, "site_refused")] == [("bonn", "broken")]
    assert events(run, "labels_masked")[0]["sites"] == ["aachen", "cologne", "dresden"]
    tamper.labels = 0
    with pytest.raises(RequestError, match="4 sites are wanted, and 3 are left"):
        away(keys, with_keys(keys, SMALL | wish, tamper, FOUR), wish, tmp_path / "four", sites=4)


def test_a_site_opens_no_map_but_its_own_and_its_run_s(keys):
    guards = [SitePrivacy(name, host.load, host.credentials) for name, host in with_keys(keys, SMALL).hosts.items()]
    sealed = guards[0].seal_map(OwnMap({7: 0, "x": 1}, 2), "run")
    assert guards[0].open_map(sealed, "run") == OwnMap({7: 0, "x": 1}, 2)
    for guard, data, run in [(guards[1], sealed, "run"), (guards[0], sealed, "other"), (guards[0], sealed[:-1], "run")]:
        with pytest.raises(Exception, match="not the one it sealed"):
            guard.open_map(data, run)


@pytest.mark.parametrize(
    "wish", [{}, {"method.name": "flips", "privacy.clustering": "masked"}], ids=["fedavg", "flips"]
)
def test_a_server_that_asks_for_counts_which_its_run_does_not_need_gets_none(tmp_path, keys, monkeypatch, wish):
    """Sites go by the experiment that they admitted; a server would hear the counts of each, one by one."""
    monkeypatch.setattr("fedstrata.remote.server.labels_asked.tells_counts", lambda privacy, needs: True)
    wish = PRF | wish | {"train.rounds": 1}
    said = []
    watched = with_keys(keys, SMALL | wish, lambda name, kind, reply: said.append((kind, reply)) or reply)
    with pytest.raises(FedstrataError, match="label masking cannot go on"):
        away(keys, watched, wish, tmp_path / "run")
    refused = [reply for kind, reply in said if kind == "labels"]
    assert refused
    assert all(b"no site tells in this run how often it has a label" in reply for reply in refused)


def test_sites_do_not_serve_sums_that_can_be_subtracted_in_two_runs(tmp_path, keys):
    wish = PRF | {"train.rounds": 1, "data.clients": 4}
    transport = with_keys(keys, SMALL | wish, sites=FOUR)
    away(keys, transport, wish, tmp_path / "four")
    transport.hosts.pop("dresden")
    with pytest.raises(RequestError, match=r"label masking cannot go on.*; sites aachen, bonn, cologne: it took part "):
        away(keys, transport, wish, tmp_path / "three")


@pytest.mark.parametrize("kind", [PRF, PRF | MASKED], ids=["labels", "sums too"])
def test_a_newcomer_is_told_why_and_by_whom_though_sites_were_started_again(tmp_path, keys, kind):
    """Counts over four sites, less those over the first three, would be the newcomer's."""
    wish = kind | {"train.rounds": 1, "data.clients": 4}
    transport = with_keys(keys, SMALL | wish, sites=FOUR)
    hosts = {name: kept_in(tmp_path / name, host) for name, host in transport.hosts.items()}
    transport.hosts = {name: hosts[name] for name in SITES}
    away(keys, transport, wish, tmp_path / "three")
    why = "sites aachen, bonn, cologne: it took part in a sum over 3 clients before, and one over these 4 could be subt"
    transport.hosts = {name: host.restarted() for name, host in hosts.items()}
    with pytest.raises(RequestError, match=why):
        away(keys, transport, wish, tmp_path / "four", sites=4)
    transport.hosts = {name: hosts[name].restarted() for name in SITES}
    assert away(keys, transport, wish, tmp_path / "three again").summary["rounds"] == 1
    for name in SITES:
        (tmp_path / name / "summed.json").unlink()  # their owners allow it anew
    transport.hosts = {name: host.restarted() for name, host in hosts.items()}
    assert away(keys, transport, wish, tmp_path / "four again", sites=4).summary["rounds"] == 1


def kept_in(folder, host):
    """Return a host that remembers in a folder."""
    return Restartable(host.name, host.load, host.credentials, folder)


def test_renewed_keys_are_of_the_same_site(tmp_path):
    make(tmp_path / "keys", SITES)
    wish = PRF | {"train.rounds": 1}
    before = {name: kept_in(tmp_path / name, host) for name, host in with_keys(tmp_path / "keys", SMALL).hosts.items()}
    away(tmp_path / "keys", Here(before), wish, tmp_path / "before")
    authority = Authority.open(tmp_path / "keys")
    authority.renew("bonn")
    after = {name: kept_in(tmp_path / name, host) for name, host in with_keys(tmp_path / "keys", SMALL).hosts.items()}
    assert after["bonn"].credentials.sites["bonn"] != before["bonn"].credentials.sites["bonn"]
    assert away(tmp_path / "keys", Here(after), wish, tmp_path / "after").summary["rounds"] == 1


def test_a_damaged_memory_of_sums_is_not_an_empty_one(tmp_path, keys):
    (tmp_path / "summed.json").write_text('{"labels": {"first": [3]}}')
    with pytest.raises(RequestError, match=r"summed.json cannot be read"):
        kept_in(tmp_path, with_keys(keys, SMALL).hosts["bonn"])


# ---- differential privacy --------------------------------------------------------------------------------------------

DP = {"method.combiner": "uniform", "privacy.dp.clip": 0.1}


@pytest.mark.parametrize("where", ["server", "local"])
@pytest.mark.parametrize("aggregate", [{}, MASKED], ids=["open", "masked"])
def test_updates_are_clipped_and_noised_at_the_sites(tmp_path, keys, where, aggregate):
    pytest.importorskip("dp_accounting")
    wish = DP | aggregate | {"privacy.dp.where": where, "train.rounds": 2, "train.lr": 1.0}
    lengths, told = [], []

    def watched(name, kind, reply):
        if kind == "task":
            report = unpack_report(split(reply)[2])
            told.append(report.loss)
            lengths.extend(float(t.norm()) for t in report.aggregated.values())
        return reply

    here = train(overrides=SMALL | wish, out=tmp_path / "here")
    quiet = away(keys, with_keys(keys, SMALL | wish, watched), wish, tmp_path / "quiet")
    assert float((model(here) - model(quiet)).abs().max()) < 1e-9
    assert all(length <= 0.1 for length in lengths)
    assert bool(lengths) == (aggregate == {})
    assert np.isnan(told).all() == (where == "local" or aggregate != {})
    noisy = wish | {"privacy.dp.noise": 0.5}
    here = train(overrides=SMALL | noisy, out=tmp_path / "noisy")
    lengths.clear()
    there = away(keys, with_keys(keys, SMALL | noisy, watched), noisy, tmp_path / "there")
    claimed = str(there.summary["privacy"])  # sites come and go, and know the seed: sampling hides nobody
    assert ("no amplification by sampling is claimed" in claimed) == (where == "server")
    assert there.summary["epsilon"] > 0
    assert float((model(here) - model(there)).abs().max()) > 1e-3  # whoever knows the seed cannot draw the noise again
    if aggregate == {}:
        assert (min(lengths) > 0.2) == (where == "local")


def test_an_update_that_is_not_finite_does_not_show(tmp_path):
    wish = DP | {"train.rounds": 1, "train.lr": 1e30}
    run = at_sites(tmp_path, wish)
    assert not events(run, "dropped")
    assert torch.isfinite(model(run)).all()


# ---- meetings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [BATCH, {"method.name": "fedtan", "train.rounds": 1}], ids=["stratify-batch", "fedtan"]
)
def test_batch_norms_of_sites_meet_under_masks(tmp_path, keys, method):
    wish, seen = method | NORMED | MASKED, []

    def watched(name, kind, reply):
        if split(reply)[1] == b"meet":
            seen.append(unpack(split(reply)[2])[1]["values"])
        return reply

    here = train(overrides=SMALL | wish | {"engine.execution": "messages"}, out=tmp_path / "here")
    there = away(keys, with_keys(keys, SMALL | wish, watched), wish, tmp_path / "there")
    assert float((model(here) - model(there)).abs().max()) < 1e-9
    assert {values.dtype for values in seen} == {torch.int64}
    spread = torch.stack([values.double().abs().mean() for values in seen]).median()
    assert spread > 2.0**60  # words under masks are spread over the whole range


def test_an_update_too_large_for_a_sum_is_refused_with_what_to_do_and_without_its_numbers(tmp_path, keys, caplog):
    wish = {"privacy.aggregate": "masked", "privacy.encoding.fraction": 28, "train.rounds": 1, "train.lr": 500.0}
    run = away(keys, with_keys(keys, SMALL | wish), wish, tmp_path / "run")
    told = {event["why"] for event in events(run, "site_refused")}
    assert told == {TOO_LARGE}
    assert {"data.scale", "train.lr"} <= set(re.findall(r"[a-z]+\.[a-z]+", TOO_LARGE))
    assert events(run, "no_update")
    assert "Traceback" not in caplog.text


def test_a_meeting_that_a_site_does_not_come_to_is_an_event(tmp_path, keys):
    def tamper(name, kind, reply):
        return build_refusal("broken") if (name, kind) == ("bonn", "meet") else reply

    wish = {"method.name": "fedtan", "train.rounds": 1} | NORMED | MASKED
    run = away(keys, with_keys(keys, SMALL | wish, tamper), wish, tmp_path / "run")
    assert any("do not meet under masks" in e["why"] for e in events(run, "dropped"))
    assert events(run, "no_update")


def test_a_hello_that_is_none_keeps_nobody_else_from_meeting(tmp_path, keys):
    def tamper(name, kind, reply):
        return build_reply(b"hello?") if (name, kind) == ("bonn", "meet") else reply

    wish = {"method.name": "fedtan", "train.rounds": 1, "data.clients": 4} | NORMED | MASKED
    run = away(keys, with_keys(keys, SMALL | wish, tamper, FOUR), wish, tmp_path / "run", 4)
    assert {e["site"] for e in events(run, "site_refused")} == {"bonn"}


# ---- clusters and histograms -----------------------------------------------------------------------------------------


def test_sites_find_their_clusters_by_masked_sums(tmp_path, keys):
    wish = FLIPS | {"privacy.clustering": "masked", "method.selector.clusters": 2, "train.rounds": 2}
    here = train(overrides=SMALL | wish, out=tmp_path / "here")
    told = []

    def watched(name, kind, reply):
        told.append((kind, split(reply)[1]))
        return reply

    there = away(keys, with_keys(keys, SMALL | wish, watched), wish, tmp_path / "there")
    assert float((model(here) - model(there)).abs().max()) < 1e-9
    assert all(json.loads(field)["counts"] is None for kind, field in told if kind == "introduce")
    assert all(len(json.loads(field)["tested"]) == 1 for kind, field in told if kind == "evaluate")
    assert events(there, "clusters_masked")[0]["steps"] == events(here, "clusters_masked")[0]["steps"]
    assert "secure sums" in " ".join(there.summary["privacy"]["server"])


def test_label_counts_get_their_noise_at_the_site_and_always_the_same(tmp_path, keys):
    wish = FLIPS | {"privacy.histogram_epsilon": 0.5, "train.rounds": 1}
    run = at_sites(tmp_path, wish)
    assert events(run, "histograms_blurred")[0]["epsilon"] == 0.5
    request = introduce(SMALL | wish, needs=["counts"])

    def counts(host, request):
        return json.loads(read_reply(host.answer(request), 1)[0])["counts"]

    first, again = with_keys(keys, SMALL).hosts["bonn"], with_keys(keys, SMALL).hosts["bonn"]
    true = counts(first, introduce(SMALL | FLIPS, needs=["counts"]))
    assert counts(first, request) == counts(first, request) == counts(again, request) != true
    assert counts(hosts(SMALL)["bonn"], request) != counts(first, request)  # another secret
    turned = introduce(SMALL | wish, needs=["counts"], classes=list(range(12))[::-1])
    assert counts(first, turned)[::-1][:10] == counts(first, request)  # no second draw by asking anew


def test_tests_are_counted_by_label_only_over_all_sites(tmp_path, keys):
    wish = FLIPS | {"privacy.clustering": "masked", "method.selector.clusters": 1, "train.rounds": 2, "data.clients": 4}

    def tamper(name, kind, reply):
        tamper.seen += (name, kind) == ("bonn", "evaluate")
        return None if (name, kind) == ("bonn", "evaluate") and tamper.seen == 1 else reply

    tamper.seen = 0
    transport = with_keys(keys, SMALL | wish, tamper, FOUR)
    run = away(keys, transport, wish, tmp_path / "run")
    first, second = events(run, "round")
    assert first["recall"] is None
    assert first["accuracy"] > 0
    assert second["balanced_accuracy"] == pytest.approx(np.mean(second["recall"]))
    transport.hosts.pop("dresden")  # sums of this run less those of the last one would be dresden's own
    run = away(keys, transport, wish, tmp_path / "fewer")
    assert all(event["recall"] is None for event in events(run, "round"))
    assert events(run, "not_scored_by_label")


# ---- keys that change ------------------------------------------------------------------------------------------------


class WhoIsThere(Here):
    """Sites may leave."""

    def exchange(self, requests, deadline=None, enough=None):
        return super().exchange({name: data for name, data in requests.items() if name in self.hosts})


def changing(tmp_path, wish, sites, how):
    """Begin a run in which bonn's key is renewed or revoked while its second round goes on."""
    own, wish = tmp_path / "keys", SMALL | wish | {"train.rounds": 5}
    make(own, sites)
    control = RunControl(tmp_path / "orders", "1", lambda: Credentials.load(own / "server").roll)

    def sited():
        return hosts(wish, lambda name: Credentials.load(own / "sites" / name), sites)

    def tamper(name, kind, reply):
        tamper.seen += (name, kind) == ("cologne", "task")
        if (name, kind, tamper.seen) == ("cologne", "task", 2):
            getattr(Authority.open(own), how)("bonn")
            transport.hosts.pop("bonn")
            transport.hosts |= {"bonn": sited()["bonn"]} if how == "renew" else {}
        return reply

    tamper.seen = 0
    transport = WhoIsThere(sited(), tamper)

    def run(**more):
        return away(own, transport, wish, tmp_path / "run", len(sites), control=control, patience=60.0, **more)

    return run


@pytest.mark.parametrize("how", ["renew", "revoke"])
def test_masked_rounds_are_not_spent_on_sites_that_agreed_with_another_key(tmp_path, how):
    """Else the run is finished in no time, with the model of the round in which the key was changed."""
    run = changing(tmp_path, MASKED, SITES, how)
    why = rf"site bonn: its key was {how}(e)?d, and sums are masked with the one that it began with; this run needs 3"
    for more in ({}, {"resumed": True}):
        with pytest.raises(FedstrataError, match=why):
            run(**more)
        told = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
        assert [event["round"] for event in told if event["event"] == "round"] == [1, 2]
        assert "its key was" in told[-1]["why"], "and the run folder says so"


@pytest.mark.parametrize("wish", [MASKED, PRF | MASKED, PRF], ids=["sums", "both", "labels"])
def test_others_go_on_without_a_site_whose_key_was_renewed(tmp_path, wish):
    run = changing(tmp_path, wish, FOUR, "renew")()
    assert run.summary["rounds"] == 5
    refused = [event["why"] for event in events(run, "site_refused") if event.get("round") != 2]
    assert len(refused) == 1
    assert refused[0].startswith("its key was renewed, and ")
    later = [event for event in run.events() if event.get("round", 0) > 2]
    assert {event["event"] for event in later} == {"round"}, "nobody asks it for anything any more"


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_what_sites_cannot_do_is_refused_before_they_are_asked(tmp_path, keys):
    for wish, why in [
        ({"privacy.labels": "ckks-paper"}, "one secret key"),
        ({"data.proxy": 10}, "the server holds none"),
        ({"data.drift": {}}, "is its own"),
    ]:
        with pytest.raises(RequestError, match=why):
            away(keys, with_keys(keys, SMALL), wish, tmp_path / "run")
    for wish in (PRF, *(FLIPS | {"privacy.clustering": where} for where in ("masked", "enclave")), MASKED):
        with pytest.raises(RequestError, match="needs keys"):
            at_sites(tmp_path, wish)
