"""Gradients and models that travel in fewer bytes: what is lost comes later, and what is charged is what was sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata import Federation, RequestError, resume, train
from fedstrata.core.compression import BLOCK, Compression, expand
from fedstrata.core.messages import tensor_bytes, value_bytes, whole_tensors
from fedstrata.inspection.rehearsal import rehearse
from fedstrata.methods.drivers.sync import RESIDUAL
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round
from fedstrata.testing import WireEngine
from fedstrata.testing.tiny import in_process
from studies.bytes import table

FORMS = [Compression("bf16"), Compression("fp16"), Compression("int8"), Compression("top-k", 0.1)]
EACH = pytest.mark.parametrize("up", FORMS, ids=lambda up: up.form)


def session(up="full", down="full", **overrides):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(96, 6)).astype(np.float32), np.arange(96) % 4
    federation = Federation.from_arrays(x, y, np.array_split(np.argsort(y, kind="stable"), 5), test=(x[:8], y[:8]))
    driver = {"kind": "sync", "up": up, "down": down} | ({"top": overrides.pop("top")} if "top" in overrides else {})
    asked = {"method.driver": driver, "train.batch_size": 16, "engine.precision": "fp64", "model.hidden": (8,)}
    asked |= {"train.optimizer": {"kind": "sgd", "momentum": 0.0}, "engine.execution": "messages"}
    asked |= {key.replace("__", "."): value for key, value in overrides.items()}
    return build_session(describe_experiment(None, "stratify-batch", asked, federation, None), federation, None)


def run_of(work, rounds=2, engine=in_process, watch=lambda engine: None):
    state, at = work.initial_state(), engine(work)
    for round in range(rounds):
        ask = at.ask

        def asked(step, tasks, ask=ask):
            told = ask(step, tasks)
            watch((step, tasks, at))
            return told

        at.ask = asked
        run_round(work.plan, state, work.plan.view(work.client_info, round, lambda *_, **__: None), at)
        at.ask = ask
        state.round += 1
    return state, at


# ---- vectors --------------------------------------------------------------------------------------------------------


def test_what_travels_by_hand():
    vector = torch.tensor([0.0, -4.0, 1.0, 0.5, 3.0])
    sparse = Compression("top-k", 0.4).compress("update", vector)
    assert {name: t.tolist() for name, t in sparse.items()} == {
        "update|index": [1, 4],
        "update|values": [-4.0, 3.0],
        "update|length": [5],
    }
    assert expand(sparse)["update"].tolist() == [0, -4, 0, 0, 3]
    codes = Compression("int8").compress("update", torch.tensor([0.0, -127.0, 64.0, 0.4]))
    assert codes["update|int8"].tolist() == [0, -127, 64, 0]
    assert codes["update|scale"].tolist() == [1.0]
    assert expand({"update|bf16": vector.bfloat16(), "dc": vector})["update"].dtype == torch.float32
    assert whole_tensors(whole := {"update": vector}) is whole


@EACH
@given(length=st.integers(1, 3 * BLOCK), seed=st.integers(0, 99), scale=st.sampled_from([0.0, 1e-3, 1.0, 100.0]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_what_comes_out_is_near_what_went_in_and_has_the_declared_shapes(up, length, seed, scale):
    vector = scale * torch.randn(length, generator=torch.Generator().manual_seed(seed))
    sent = up.compress("update", vector)
    assert {n: (tuple(t.shape), t.dtype) for n, t in sent.items()} == up.shapes("update", length, torch.float32)
    assert up.fits(sent, "update", length)
    lost = (vector - expand(sent)["update"]).abs()
    if up.form == "top-k":
        kept = vector.abs().sort(descending=True).values[: up.kept(length)]
        assert lost.count_nonzero() <= length - up.kept(length)
        assert bool((lost <= kept.min()).all())
    else:
        assert bool((lost <= {"bf16": 2**-8, "fp16": 2**-10, "int8": 1 / 127}[up.form] * vector.abs().max()).all())


# ---- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [in_process, lambda work: WireEngine(work.plan.local, work.federation)])
def test_the_largest_numbers_of_all_are_all_numbers(engine):
    """Nothing is lost, so the run is the uncompressed one; what is asked for in full sends what it always did."""
    plain, _ = run_of(session())
    whole, _ = run_of(session("top-k", top=0.9999), engine=engine)
    assert torch.allclose(plain.model.params, whole.model.params, rtol=0, atol=1e-12)


@EACH
def test_over_many_steps_the_sums_are_those_of_the_exact_gradients(up):
    """With tiny steps both runs see the same gradients, and the model has moved by the sum of what arrived."""
    rate, options = 1e-7, {"top": up.share} if up.form == "top-k" else {}
    (exact, _), (sent, engine) = (
        run_of(session(form, train__lr=rate, **o), 3) for form, o in (("full", {}), (up.form, options))
    )
    start = session().initial_state().model.params
    arrived, truth = ((start - run.model.params) / rate * 16 for run in (sent, exact))  # all batches have 16 samples
    kept = sum(tensors[RESIDUAL] for _, tensors in engine.client_states().values())
    assert float(kept.abs().max()) > 1e-6  # something was lost on the way
    assert torch.allclose(arrived - kept, truth, rtol=0, atol=1e-4 * float(truth.abs().max()))


@pytest.mark.parametrize("down", ["full", "bf16"])
@EACH
def test_the_bytes_charged_are_those_that_were_sent(up, down):
    work = session(up.form, down, **({"top": up.share} if up.form == "top-k" else {}))
    sent = {"up": 0, "down": 0, "updates": 0}

    def watch(seen):
        step, tasks, engine = seen
        for report in engine.each().values():
            sent["up"] += tensor_bytes(report.aggregated) + value_bytes(report.metrics)
        sent["down"] += sum(task.nbytes for task in tasks)
        sent["updates"] += len(tasks) * step.combine

    state, _ = run_of(work, watch=watch)
    assert (state.traffic.bytes_up, state.traffic.bytes_down) == (sent["up"], sent["down"])
    P, k = work.plan.space.P, up.kept(work.plan.space.P)
    numbers = {"bf16": 2 * P, "fp16": 2 * P, "int8": P + 8 * -(-P // BLOCK), "top-k": (4 + 8) * k + 8}[up.form]
    plain, _ = run_of(session())
    spared = sent["updates"] * (8 * P - numbers)
    assert plain.traffic.bytes_up - state.traffic.bytes_up == spared
    assert up.nbytes(P, torch.float64) == numbers
    assert plain.traffic.bytes_down - state.traffic.bytes_down == sent["updates"] * (6 * P if down == "bf16" else 0)


def test_a_smaller_model_is_rounded_on_its_way_and_exact_at_the_server():
    seen = []
    state, _ = run_of(session(down="fp16"), 1, watch=lambda now: seen.append(now[1][0].down.get("params")))
    assert {tensor.dtype for tensor in seen if tensor is not None} == {torch.float16}
    assert state.model.params.dtype == torch.float64
    assert not torch.equal(state.model.params, state.model.params.half().double())


def test_what_compression_lost_is_kept_over_a_resumed_run(tmp_path):
    asked = {"data.clients": 4, "train.rounds": 2, "method.driver": {"kind": "sync", "up": "top-k"}}
    whole = train(method="stratify-batch", overrides=asked, out=tmp_path / "whole")

    def watch(event):
        if event["event"] == "round" and event["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(method="stratify-batch", overrides=asked, out=tmp_path / "cut", watch=watch)
    cut = resume(tmp_path / "cut")
    assert cut.summary["accuracy"] == whole.summary["accuracy"]
    assert cut.summary["loss_test"] == whole.summary["loss_test"]


def test_inspecting_a_plan_counts_what_travels():
    def cost(**driver):
        work = session(**driver, engine__precision="fp32", engine__execution="auto")
        return rehearse(work.plan, work.federation)

    work, plain, small = session(), cost(), cost(up="int8", down="bf16")
    P = work.plan.space.P
    assert plain.bytes - small.bytes == small.client_updates * (8 * P - 2 * P - Compression("int8").nbytes(P))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"method.driver.top": 0.5}, "method.driver.top = 0.5 belongs to"),
        ({"method.driver.up": "top-k", "method.driver.top": 1.5}, "method.driver.top = 1.5 is not valid"),
        ({"method.driver.up": "int4"}, "method.driver.up"),
        ({"method.driver.up": "bf16", "privacy.aggregate": "masked"}, 'method.driver.up = "bf16"'),
        ({"method.driver.up": "bf16", "method.combiner": "median"}, "the combiner looks at single ones"),
        ({"method.driver.down": "bf16", "engine.execution": "fused"}, "compressed on its own"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(asked, said, tmp_path):
    with pytest.raises(RequestError) as refused:
        train(method="stratify-batch", overrides={"data.clients": 4, **asked}, out=tmp_path / "run")
    assert said in str(refused.value)
    assert not (tmp_path / "run").exists()


# ---- the study ------------------------------------------------------------------------------------------------------


def test_the_study_gives_every_row_the_same_bytes():
    lines = table(
        "digits", "mlp", 10, 2, rounds=4, seeds=1, only=["as the paper has it", "batches of 1,024, int8 and bf16"]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()[2:]]
    assert [row[0] for row in rows] == [
        "FedAvg",
        "Stratify, as the paper has it",
        "Stratify, batches of 1,024, int8 and bf16",
    ]
    spent = [float(row[2].split()[0]) for row in rows]
    assert max(spent) < 1.35 * min(spent)  # whole rounds
    assert float(rows[2][3]) > 5 * float(rows[1][3])
    assert (float(rows[1][4]), float(rows[2][4]) < 0.1) == (1.0, True)
    assert rows[1][1] == rows[1][5]  # of the plain method, equal epochs are equal bytes
