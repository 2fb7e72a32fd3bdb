"""Cells as tasks of a cluster give what cells in this process give."""

from __future__ import annotations

import pytest

import fedstrata

pytest.importorskip("ray")

from ray_cluster import several_nodes

ASKED = {"methods": ["fedavg", "scaffold"], "overrides": {"train.rounds": 2, "train.clients_per_round": 4}}
FIGURES = ("accuracy", "balanced_accuracy", "bytes_up", "client_updates")


def figures(comparison):
    return [{name: row[name]["mean"] for name in FIGURES} for row in comparison.rows]


@pytest.mark.extended
@pytest.mark.xdist_group("ray")
@pytest.mark.filterwarnings("ignore::ResourceWarning:ray")
def test_cells_and_trials_on_a_cluster(tmp_path):
    plain = fedstrata.compare(**ASKED, out=tmp_path / "plain", jobs=1)
    with several_nodes([1, 1]) as nodes:
        seen = []
        spread = fedstrata.compare(
            **ASKED, out=tmp_path / "spread", engine="ray", watch=lambda cell, event: seen.append((cell.method, event))
        )
        assert figures(spread) == figures(plain)
        assert [cell.hash for cell in spread.cells] == [cell.hash for cell in plain.cells]
        for method in ASKED["methods"]:  # as they happen, in order
            own = [event["event"] for name, event in seen if name == method]
            assert own[0] == "begin"
            assert own.count("round") == 2
            assert own[-1] == "finished"
        seen.clear()
        fedstrata.Comparison.open(tmp_path / "spread").run(engine="ray", watch=lambda *told: seen.append(told))
        assert not seen  # what is finished is never run again
        tuning = {**ASKED, "tune": {"train.lr": [0.01, 0.1], "budget": "rounds=1"}}
        tuned = [fedstrata.compare(**tuning, out=tmp_path / name, engine=name) for name in ("local", "ray")]
        assert figures(tuned[0]) == figures(tuned[1])
        assert not list((tmp_path / "spread").rglob(".*"))  # no marks are left

        def kill(cell, event):
            if event["event"] == "round" and nodes.worker_nodes:  # both run a cell now
                nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)

        bereft = fedstrata.compare(**ASKED, out=tmp_path / "bereft", engine="ray", watch=kill)
        assert figures(bereft) == figures(plain)


@pytest.mark.parametrize(
    ("how", "said"),
    [({"engine": "slurm"}, "allowed: local, ray"), ({"engine": "ray", "jobs": 0}, "jobs = 0")],
)
def test_what_cannot_be_is_refused(tmp_path, how, said):
    with pytest.raises(fedstrata.RequestError, match=said):
        fedstrata.compare(**ASKED, out=tmp_path / "none", **how)


def test_a_cell_that_wants_a_cluster_of_its_own_is_refused(tmp_path):
    asked = {**ASKED, "overrides": {**ASKED["overrides"], "engine.kind": "ray"}}
    with pytest.raises(fedstrata.RequestError, match="leave out one of the two"):
        fedstrata.compare(**asked, out=tmp_path / "none", engine="ray")
