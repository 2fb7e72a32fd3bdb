"""Shares of a comparison on several machines, and their cells put together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from flipping import ONE_STEP, clients, network

import fedstrata
from fedstrata import Comparison, RequestError
from fedstrata.core.storage.file_lock import is_locked, take_lock
from fedstrata.runs.compare import shards
from fedstrata.runs.compare.shards import Shard
from fedstrata.runs.folder import LOCK

SMALL = {"train.rounds": 1, "data.clients": 5, "train.epochs": 1, "train.batch_size": 64, "engine.vmap": "never"}
SETS = [f"--set={key}={value}" for key, value in SMALL.items()]


def share(out, shard=None, **more):
    how = {"methods": ["fedavg", "sfl"], "seeds": 2, "overrides": SMALL, "jobs": 1}
    return fedstrata.compare(out=out, shard=shard, **how | more)


def finished(comparison):
    return [cell.name for cell in comparison.cells if cell.state == "finished"]


def figures(comparison):
    return [[row[name] for name in ("accuracy", "bytes_up", "rank")] for row in comparison.rows]


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def test_shares_are_disjoint_and_together_everything():
    parts = [finished(share(f"p{n}", f"{n}/3")) for n in (1, 2, 3)]
    assert list(map(len, parts)) == [2, 1, 1]
    assert sorted(name for part in parts for name in part) == sorted(finished(share("whole")))


def test_what_was_merged_is_what_one_machine_would_have(cli):
    share("a", "1/2")
    share("b", "2/2")
    before = content("a"), content("b")
    code, out, err = cli("compare", "--merge", "m", "a", "b", "--json")
    assert code == 0, err
    whole = share("whole")
    merged = Comparison.open("m")
    assert figures(merged) == figures(whole)
    rows = [[row[name] for name in ("accuracy", "bytes_up", "rank")] for row in json.loads(out)["rows"]]
    assert rows == figures(whole)
    assert (content("a"), content("b")) == before
    assert json.loads(Path("m/comparison.json").read_text())["rows"] == json.loads(out)["rows"]
    assert merged.run().failed == []


def test_shares_may_use_one_folder():
    share("c", "1/2")
    done = share("c", "2/2")
    assert len(finished(done)) == 4
    assert figures(done) == figures(share("whole"))


@pytest.mark.parametrize("tuner", ["grid", "optuna"])
def test_a_share_sees_what_another_tuned_in_the_same_folder(tuner):
    """The first begins before the second has tried anything, and ends after it."""
    tune = {"train.lr": [0.1, 2.0], "tuner": tuner} | ({"trials": 2} if tuner == "optuna" else {})
    own = {"methods": ["fedavg"], "variants": {"b": {"train.batch_size": 32}}, "tune": tune, "overrides": ONE_STEP}
    how = own | {"federation": clients(), "model": network(), "seeds": 1}
    other = []

    def watch(cell, event):
        if event["event"] == "begin" and not other:
            other.append(share("c", "2/2", **how))

    done = share("c", "1/2", watch=watch, **how)
    assert len(finished(other[0])) == 1
    assert len(finished(done)) == 2


def test_one_share_is_not_run_twice_at_once():
    share("c", "1/2")
    lock = take_lock(Path("c/shard-2-of-2.lock"))
    assert lock is not None
    with pytest.raises(RequestError, match="another process is running 2/2 of the comparison in c"):
        share("c", "2/2")
    with pytest.raises(RequestError, match="another process is running shard-2-of-2 of the comparison in c"):
        share("c")


def test_one_that_runs_all_looks_for_shares_after_it_has_locked(monkeypatch):
    """A share locks its own first and looks then: of two that begin at once, one sees the other."""
    share("c", "1/2")
    seen = []
    monkeypatch.setattr(shards, "is_locked", lambda file: seen.append((file.name, is_locked(Path("c") / LOCK))))
    with Shard().locked(Path("c")):
        assert seen == [("shard-1-of-2.lock", True)]


def test_nothing_is_written_over_and_merging_again_changes_no_run():
    share("a", "1/2")
    share("b", "2/2")
    Comparison.merge("m", ["a", "b"])
    runs = {path: data for path, data in content("m").items() if path != "comparison.json"}
    share("a")  # now a has everything
    Comparison.merge("m", ["a"])
    assert {path: data for path, data in content("m").items() if path != "comparison.json"} == runs


def test_a_half_done_run_gives_way_to_a_finished_one():
    share("a", "1/2")
    share("b", "2/2")
    shutil.copytree("a", "cut")
    Path("cut/fedavg/seed-0/summary.json").unlink()
    merged = Comparison.merge("m", ["cut", "a", "b"])
    assert len(finished(merged)) == 4


def test_tuned_rows_stay_together_and_are_merged_with_their_trials():
    tune = {"train.lr": "0.5..4", "tuner": "optuna", "trials": 3}
    own = {"federation": clients(), "model": network(), "overrides": ONE_STEP, "tune": tune}
    how = own | {"methods": ["fedavg"], "variants": {"b": {"train.batch_size": 32}}}
    for n in (1, 2):
        part = share(f"p{n}", f"{n}/2", **how)
        assert len(finished(part)) == 2, "both seeds of one row"
        assert sum(choice is None for choice in part.choices.values()) == 1
    merged = Comparison.merge("m", ["p1", "p2"], federation=clients(), model=network())
    whole = share("whole", **how)
    assert figures(merged) == figures(whole)
    assert [c.setting for c in merged.choices.values()] == [c.setting for c in whole.choices.values()]


def test_what_does_not_fit_is_refused_and_nothing_is_written(cli):
    share("a", "1/2")
    share("other", "2/2", overrides=SMALL | {"train.lr": 0.5})
    share("more", "2/2", seeds=3)
    share("rows", "1/2", methods=["fedavg", "fedprox"])
    Path("notes").mkdir()
    Path("notes/x.txt").write_text("mine")
    for folders, said in [
        (["a", "other"], "a and other do not hold the same comparison (set.train.lr: None -> 0.5)"),
        (["a", "more"], "a and more do not hold the same comparison (seeds: [0, 1] -> [0, 1, 2])"),
        (["a", "rows"], "(methods: ['fedavg', 'sfl'] -> ['fedavg', 'fedprox'])"),
        (["a", "nowhere"], "nowhere is not the folder of a comparison"),
        (["a", "notes"], "notes holds other files"),
        ([], "merge needs folders"),
    ]:
        code, out, err = cli("compare", "--merge", "m", *folders)
        assert (code, out) == (2, "")
        assert said in err
        assert len(err.strip().splitlines()) == 1
        assert not Path("m").exists()


def test_a_run_that_is_not_the_same_is_refused_by_its_hash():
    share("a")
    shutil.copytree("a", "b")
    known = json.loads(Path("b/comparison.json").read_text())
    known["cells"][1]["hash"] = "0" * 64
    Path("b/comparison.json").write_text(json.dumps(known))
    run = known["cells"][1]["run_dir"]
    with pytest.raises(RequestError, match=f"{run} in a and in b are not the same run: their experiments differ"):
        Comparison.merge("m", ["a", "b"])
    assert not Path("m").exists()


def test_what_was_made_with_other_data_or_edited_is_refused_before_anything_is_written():
    how = {"methods": ["fedavg"], "federation": clients(), "model": network(), "overrides": ONE_STEP}
    share("a", "1/2", **how)
    share("b", "2/2", **how)
    other = network()
    other.head.weight.data += 1
    with pytest.raises(RequestError, match="a/fedavg/seed-0 was made with other data or first weights"):
        Comparison.merge("m", ["a", "b"], federation=clients(), model=other)
    file = Path("b/fedavg/seed-1/experiment.toml")
    file.write_text(file.read_text().replace("rounds = 1\n", "rounds = 2\n"))
    with pytest.raises(RequestError, match=r"experiment.toml is not that of the comparison \(train.rounds: 1 -> 2\)"):
        Comparison.merge("m", ["a", "b"], federation=clients(), model=network())
    assert not Path("m").exists()


def test_shares_read_as_text():
    assert Shard.read(" 2 / 5") == Shard(2, 5)
    assert Shard.read(None) == Shard()
