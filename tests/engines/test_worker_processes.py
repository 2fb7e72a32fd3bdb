"""Workers in processes of their own: the number of workers never changes a bit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import pytest
import torch

from fedstrata import train
from fedstrata.core.client_parts import Correction
from fedstrata.core.errors import ClientError, FedstrataError, RequestError
from fedstrata.engines.local.engine import LocalEngine
from fedstrata.engines.local.processes import ProcessPool
from fedstrata.testing import tiny_federation
from fedstrata.testing.tiny import run_rounds, same, session_of

pytestmark = pytest.mark.usefixtures("quick_processes")


@dataclass(frozen=True)
class Broken(Correction):
    """Fails for one client."""

    def fill(self, own, buf, context):
        if context.client.id == 3:
            raise ValueError("this client is broken")


@dataclass(frozen=True)
class Deadly(Correction):
    """Kills the process it runs in."""

    def fill(self, own, buf, context):
        os._exit(7)


def workers(count):
    engines = []

    def start(work):
        engines.append(LocalEngine(ProcessPool(work.plan.local, work.federation, count)))
        return engines[-1]

    start.engines = engines
    return start


def pids_of(pool):
    return [child.process.pid for child in pool._children]


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("method", ["scaffold", "sfl"])
def test_one_two_and_three_workers_are_bit_equal(method, precision):
    overrides = {"method.name": method, "engine.precision": precision, "train.clients_per_round": 5}
    alone, outcomes = run_rounds(session_of(overrides))
    for count in (2, 3):
        start = workers(count)
        state, same_outcomes = run_rounds(session_of(overrides), engine=start)
        start.engines[0].close()
        assert same(alone, state)
        assert outcomes == same_outcomes


def test_a_whole_run_has_the_same_events_and_model_on_any_number_of_workers(tmp_path):
    small = {"train.rounds": 3, "data.clients": 8, "model.name": "lenet5", "system.stragglers.rate": 0.3}
    small |= {"engine.device": "cpu", "train.epochs": 1, "train.batch_size": 32}
    one = train(overrides=small | {"engine.workers": 1}, out=tmp_path / "1")
    for count in (2, 3):
        more = train(overrides=small | {"engine.workers": count}, out=tmp_path / str(count))
        assert one.events(wall=False) == more.events(wall=False)
        assert all(torch.equal(t, more.model()[name]) for name, t in one.model().items())


@pytest.mark.parametrize("count", [1, 2])
def test_a_part_that_raises_names_the_client_and_shows_its_own_traceback(count):
    work = session_of({"method.corrections": [{"kind": f"{__name__}:Broken"}], "train.clients_per_round": "all"})
    start = workers(count)
    if count == 1:
        with pytest.raises(ValueError, match="this client is broken") as caught:
            run_rounds(work)
        assert "client 3" in "".join(caught.value.__notes__)
        return
    with pytest.raises(ClientError, match=r"client 3 failed(?s:.*)in fill(?s:.*)this client is broken"):
        run_rounds(work, engine=start)
    start.engines[0].close()


def test_a_worker_that_dies_is_reported_with_its_exit_code():
    start = workers(2)
    with pytest.raises(FedstrataError, match="exit code 7"):
        run_rounds(session_of({"method.corrections": [{"kind": f"{__name__}:Deadly"}]}), engine=start)
    start.engines[0].close()


def test_closing_leaves_no_process_behind():
    work = session_of()
    pool = ProcessPool(work.plan.local, work.federation, 2)
    pids = pids_of(pool)
    assert len(pids) == 2
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_more_workers_than_cores_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    run = train(
        federation=tiny_federation(),
        overrides={"engine.workers": 2, "engine.device": "cpu", "train.rounds": 1, "train.clients_per_round": 2},
        out=tmp_path / "run",
    )
    assert (
        next(e["wall"]["remark"] for e in run.events() if e["event"] == "engine")
        == "2 workers on 1 core(s) slow each other down"
    )


def test_a_script_with_its_own_part_needs_no_main_guard(tmp_path):
    """Workers never import the user's script again.

    A part it defines itself is trained with one worker, and said so.
    """
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            import fedstrata
            from fedstrata.core.client_parts import Correction
            from fedstrata.engines.local import start as local
            from fedstrata.testing import tiny_federation

            @dataclass(frozen=True)
            class Mine(Correction):
                '''Does nothing.'''

            local.WORTH_A_PROCESS = 0.0
            quickly = {"train.rounds": 1, "engine.device": "cpu", "engine.vmap": "never"}
            for part in ([], [Mine()]):
                run = fedstrata.train(
                    federation=tiny_federation(),
                    overrides={**quickly, "method.corrections": part},
                )
                engine = next(e["wall"] for e in run.events() if e["event"] == "engine")
                print(engine["workers"], engine["remark"])
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == f"{len(os.sched_getaffinity(0))} None"
    assert second.startswith("1 one worker is used: Mine is defined in the script itself")


def test_workers_that_cannot_have_the_plan_are_refused_when_asked_for():
    class Unreachable(torch.nn.Linear):
        pass

    with pytest.raises(RequestError, match=r"engine\.workers = 2.*engine\.workers = 1"):
        train(
            federation=tiny_federation(),
            model=Unreachable(4, 3),
            overrides={"engine.workers": 2, "engine.device": "cpu", "train.rounds": 1},
        )


def test_cuda_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RequestError, match=r'engine\.device = "cuda" but torch sees no GPU'):
        train(federation=tiny_federation(), overrides={"engine.device": "cuda", "train.rounds": 1})
