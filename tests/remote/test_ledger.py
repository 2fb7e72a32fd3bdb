"""What a site gave, and the sums that a server keeps: on disk before they are used."""

from __future__ import annotations

import json
from math import inf, sqrt

import pytest
import torch

from fedstrata import Accountant, RequestError
from fedstrata.core.errors import UnsummableError
from fedstrata.core.messages import Report, Sums, Task
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.remote.server.kept_sums import KeptSum, KeptSums
from fedstrata.remote.site import ledger
from fedstrata.remote.site.ledger import FILE, Ledger

# ---- the site's ledger -----------------------------------------------------------------------------------------------


def test_a_ledger_goes_forward_only_run_by_run_and_survives_its_process(tmp_path):
    book = Ledger(tmp_path / "site")
    for step in [(0, 0), (0, 3), (2, 0), (2, 1)]:
        book.enter("run", step)
    book.enter("another", (0, 0))
    for again in (book, Ledger(tmp_path / "site")):
        for step in [(0, 0), (1, 7), (2, 0), (2, 1)]:
            for refusing in (again.check, again.enter):
                with pytest.raises(RefusedError, match="gave its update for round 3, step 1"):
                    refusing("run", step)
        again.check("run", (2, 2))
        again.check("another", (0, 1))
        again.check("new", (0, 0))
    assert (tmp_path / "site").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("step", [(float("nan"), 0), (0, float("nan")), (1.0, 0), (True, 0), (-1, 0), ("3", 0)])
def test_steps_that_no_order_holds_for_are_refused(step):
    with pytest.raises(RefusedError, match="whole numbers"):
        Ledger(None).enter("run", step)


def test_what_cannot_be_written_is_not_given(tmp_path, monkeypatch):
    book = Ledger(tmp_path)
    book.enter("run", (0, 0), 1.0)

    def full(*_):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "write_atomically", full)
        with pytest.raises(OSError, match="full"):
            book.enter("run", (1, 0), 1.0)
    assert book.spent() == Ledger(tmp_path).spent() == 1.0
    book.enter("run", (1, 0), 1.0)


def test_costs_add_up_to_the_epsilon_of_the_accountant(tmp_path):
    dp = pytest.importorskip("dp_accounting")
    for local in (False, True):
        noise, accountant = UpdateNoise(1.0, 1.3, local), Accountant(1.3, 1e-5, local=local)
        for reports in (1, 4, 9):
            told = dp.get_epsilon_gaussian(1 / sqrt(reports * noise.cost), 1e-5)
            assert told == pytest.approx(accountant.epsilon(reports), rel=1e-9)
    assert UpdateNoise(1.0, 0.0, local=True).cost == 0.0


def test_a_budget_is_spent_to_its_end_and_no_further(tmp_path):
    cost = 0.1  # whose sums differ in the last bits
    book = Ledger(tmp_path)
    for round in range(7):
        book.enter("run", (round, 0), cost, 7 * cost)
    with pytest.raises(RefusedError, match=r"privacy\.dp\.budget"):
        Ledger(tmp_path).enter("run", (7, 0), cost, 7 * cost)
    book.enter("run", (7, 0), cost, inf)
    assert book.spent() == pytest.approx(0.8)


def gave(spent: str, step: str = "[1, 0]") -> bytes:
    return f'{{"x": {{"step": {step}, "spent": {spent}}}}}'.encode()


DAMAGED = [b"", b"{", b"[]", b'{"x": {"step": [1]}}', b'{"x": {"step": [1, 0]}}', b"\xff\xfe", b"[" * 100_000]
DAMAGED += [gave("NaN"), gave("-1"), gave("Infinity"), gave("9" * 400), gave("0", "[Infinity, 0]")]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_ledger_is_no_empty_one(tmp_path, damage):
    (tmp_path / FILE).write_bytes(damage)
    with pytest.raises(RequestError, match=r"ledger\.json cannot be read .* does not know any more what it gave"):
        Ledger(tmp_path)


def test_names_of_runs_are_no_longer_than_others(tmp_path):
    Ledger(tmp_path).enter("x" * 1_000_000, (0, 0))
    (name,) = json.loads((tmp_path / FILE).read_text())
    assert len(name) == 32


# ---- the server's sums -----------------------------------------------------------------------------------------------

TASKS = [Task(client, 4, 1, "train", 0, (0, 1), {}, {}) for client in (0, 2, 3)]
REPORTS = [Report(client, samples=5, loss=float("nan"), metrics={"utility": 0.1}) for client in (0, 3)]
TOTAL = {"update": torch.tensor([0.1, -3.0], dtype=torch.float64), "buffers": torch.ones(3)}
KEPT = KeptSum(REPORTS, Sums(TOTAL, 0.7, 2, shares={0: 0.4, 3: 0.3}), (10, 20))


def test_a_kept_sum_comes_back_as_it_was(tmp_path):
    kept = KeptSums(tmp_path)
    assert kept.find(TASKS) is None
    assert kept.attendance(4, [0, 2, 3]) == [0, 2, 3]
    kept.keep(TASKS, KEPT)
    again = KeptSums(tmp_path)
    found = again.find(TASKS)
    assert found.overhead_bytes == (10, 20)
    assert [(r.client, r.samples, r.metrics) for r in found.reports] == [
        (0, 5, {"utility": 0.1}),
        (3, 5, {"utility": 0.1}),
    ]
    sums = found.of({0: 0.4, 3: 0.3})
    assert (sums.weight, sums.count, sums.shares) == (0.7, 2, {0: 0.4, 3: 0.3})
    assert all(torch.equal(sums.total[name], TOTAL[name]) for name in TOTAL)
    assert {name: t.dtype for name, t in sums.total.items()} == {name: t.dtype for name, t in TOTAL.items()}
    assert again.attendance(4, [0]) == [0, 2, 3], "who was there when the round began"
    assert again.attendance(5, [0]) == [0]
    with pytest.raises(UnsummableError, match="other weights"):
        found.of({0: 0.4, 3: 0.4})


def test_a_sum_that_was_half_written_when_the_server_was_killed_is_in_nobody_s_way(tmp_path):
    (tmp_path / "sum-4-0.part").write_bytes(b"half")
    kept = KeptSums(tmp_path)
    assert kept.attendance(4, [0, 2]) == [0, 2]
    kept.keep(TASKS, KEPT)
    assert KeptSums(tmp_path).attendance(4, [0]) == [0, 2]


def test_a_kept_sum_is_that_of_its_step_only_and_fills_no_disk(tmp_path, monkeypatch):
    kept = KeptSums(tmp_path)
    kept.keep(TASKS, KEPT)
    assert kept.find(TASKS[:2]) is None
    assert kept.find([Task(task.client, 4, 2, "train", 0, (0, 1), {}, {}) for task in TASKS]) is None
    assert kept.find([Task(task.client, 4, 1, "gradient", 0, (0, 1), {}, {}) for task in TASKS]) is None
    (file,) = tmp_path.iterdir()
    monkeypatch.setattr("fedstrata.remote.server.kept_sums.MOST", 2 * file.stat().st_size)
    later = [[Task(0, 4, step, "train", 0, (0, 1), {}, {})] for step in (2, 3)]
    assert [kept.keep(tasks, KEPT) for tasks in later] == [True, False]
    assert kept.find(later[1]) is None
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    with pytest.raises(RequestError, match="sum-4-1 is damaged"):
        kept.find(TASKS)
