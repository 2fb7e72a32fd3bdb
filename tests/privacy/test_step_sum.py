"""Both halves of a protected sum: what leaves a client, and the one sum that the server forms of it."""

from __future__ import annotations

from hashlib import shake_256

import numpy as np
import pytest
import torch
from in_process_sites import SITES, SMALL, model, with_keys

from fedstrata import train
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import UnsummableError
from fedstrata.core.messages import Report, tensor_bytes
from fedstrata.deploy.keys import make
from fedstrata.privacy.frames import RefusedError, never
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.masked_sum import MaskedStep, StepSum
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.privacy.protect import cut, flatten, protect_report, protect_update, sum_figures
from fedstrata.privacy.sums.fixed_point import NARROW, WIDE, Encoding
from fedstrata.privacy.sums.secure_sum import Parties, in_memory
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.server.session import run_at_sites

LAYOUT = {"update": torch.zeros(2, 2), "buffers": torch.zeros(1, dtype=torch.float64)}
JOB = bytes(16)


def entropy(who):
    drawn = iter(range(1_000))
    return lambda size: shake_256(b"%d|%d" % (who, next(drawn))).digest(size)


def rng():
    return np.random.default_rng(5)


def updates(n):
    draw = np.random.default_rng(0)
    return {client: draw.normal(size=5) for client in range(n)}


def aggregated(weights, values, clients=4, noise=None, carried=lambda carry: carry, refuse=never):
    """Form a sum under masks whose clients all live here; give it with its overhead."""
    server, *own = [Identity.new(entropy(who)) for who in range(clients + 1)]
    key_directory = KeyDirectory.of(server, own)
    parties = Parties(server, dict(enumerate(own)), key_directory, lambda client: entropy(100 + client))
    step = MaskedStep(server, key_directory, WIDE, JOB, range(clients))
    total = StepSum(noise, rng)
    sums = total.sum_masked(weights, LAYOUT, step, lambda task: carried(in_memory(task, parties, values)), refuse)
    return sums, total.overhead


# ---- the client's half -----------------------------------------------------------------------------------------------


def test_tensors_are_flat_in_the_order_of_their_names_and_come_back():
    tensors = {"update": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "buffers": torch.tensor([5.0], dtype=torch.float64)}
    flat = flatten(tensors)
    assert flat.tolist() == [5.0, 1.0, 2.0, 3.0, 4.0]
    assert flat.dtype == np.float64
    back = cut(flat, LAYOUT)
    assert {name: t.dtype for name, t in back.items()} == {"buffers": torch.float64, "update": torch.float32}
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    assert flatten({}).shape == (0,)
    assert cut(np.zeros(0), {}) == {}


def test_what_leaves_is_clipped_and_carries_the_client_s_own_noise_only():
    tensors = {"update": torch.tensor([3.0, 4.0])}
    assert protect_update(tensors, None, None, rng).tolist() == [3.0, 4.0]
    central = protect_update(tensors, UpdateNoise(1.0, 2.0, local=False), None, rng)
    assert central == pytest.approx([0.6, 0.8], rel=1e-9)
    noisy = protect_update(tensors, UpdateNoise(1.0, 2.0, local=True), None, rng)
    assert noisy == pytest.approx(central + rng().normal(0.0, 2.0, 2))
    coarse = Encoding(32, 2)  # numbers a quarter apart may make it longer: it is clipped to less
    assert (
        np.linalg.norm(protect_update(tensors, UpdateNoise(1.0, 0.0, local=False), coarse, rng)) <= 1 - 0.125 * 2**0.5
    )


def test_numbers_stay_at_the_client_where_its_own_noise_hides_the_update():
    report = Report(3, samples=7, loss=0.5, update_norm=1.5, metrics={"spread": 2.0})
    assert protect_report(report, None) is report
    assert protect_report(report, UpdateNoise(1.0, 1.0, local=False)) is report
    hidden = protect_report(report, UpdateNoise(1.0, 1.0, local=True))
    assert np.isnan([hidden.loss, hidden.update_norm]).all()
    assert hidden.metrics == {}
    assert (hidden.client, hidden.samples) == (3, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("encoding", [NARROW, WIDE])
@pytest.mark.parametrize("clients", [3, 5, 7, 10])
def test_figures_of_any_size_cost_no_update(dtype, encoding, clients):
    """What is cut off must fit as a number of the update's type: rounded to the nearest, it may lie above."""
    report = Report(3, 7, loss=1e30, update_norm=2.5, aggregated={"update": torch.zeros(2, dtype=dtype)})
    told = sum_figures(report, encoding.most(clients)).aggregated["figures"]
    assert float(told[0]) == pytest.approx(encoding.most(clients), rel=1e-6)
    assert float(told[1]) == 2.5
    assert told.dtype == dtype
    encoding.words(told, clients)


# ---- the server's half -----------------------------------------------------------------------------------------------


def test_an_open_sum_by_hand():
    values = {0: np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 2: np.array([10.0, 0.0, 0.0, 0.0, 1.0])}
    sums = StepSum(None, rng).sum_open({0: 2.0, 2: 0.5}, values, LAYOUT)
    assert sums.total["buffers"].tolist() == [7.0]
    assert sums.total["update"].tolist() == [[4.0, 6.0], [8.0, 10.5]]
    assert (sums.weight, sums.count, sums.shares) == (2.5, 2, {0: 2.0, 2: 0.5})


def test_masks_change_a_sum_by_no_more_than_the_encoding_and_cost_what_is_accounted():
    values, weights = updates(4), {0: 3.0, 1: 1.0, 2: 2.0, 3: 0.5}
    masked, (up, down) = aggregated(weights, values)
    plain = StepSum(None, rng).sum_open(weights, values, LAYOUT)
    assert flatten(masked.total) == pytest.approx(flatten(plain.total), abs=1e-6)
    assert masked.shares == plain.shares
    assert masked.weight == plain.weight
    assert up > 0
    assert down > 0


def test_the_account_holds_every_message_beyond_the_updates_themselves():
    seen = {"up": 0, "down": 0}

    def counted(carry):
        def counting(step, messages):
            replies = carry(step, messages)
            seen["down"] += sum(map(len, messages.values()))
            seen["up"] += sum(map(len, replies.values()))
            return replies

        return counting

    _, (up, down) = aggregated(dict.fromkeys(range(4), 1.0), updates(4), carried=counted)
    assert down == seen["down"]
    assert up == seen["up"] - 4 * tensor_bytes(LAYOUT)


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_the_server_s_noise_is_as_large_as_the_largest_weight_says(masked):
    values, weights, noise = updates(4), {0: 3.0, 1: 1.0, 2: 2.0, 3: 0.5}, UpdateNoise(10.0, 0.5, local=False)
    if masked:
        quiet, noisy = (aggregated(weights, values, noise=with_or_without)[0] for with_or_without in (None, noise))
    else:
        quiet, noisy = (StepSum(one, rng).sum_open(weights, values, LAYOUT) for one in (None, noise))
    added = flatten(noisy.total) - flatten(quiet.total)
    assert added == pytest.approx(3.0 * rng().normal(0.0, 5.0, 5), rel=1e-5)


def test_a_step_is_summed_once():
    total = StepSum(None, rng)
    total.sum_open({0: 1.0}, updates(1), LAYOUT)
    with pytest.raises(RuntimeError, match="once a step"):
        total.sum_open({0: 1.0}, updates(1), LAYOUT)


@pytest.mark.parametrize(
    ("weights", "clients", "why"),
    [
        ({0: 1.0, 1: 1.0}, 4, "fewer than 3 clients have any weight"),
        ({0: 1.0, 1: 1e-4, 2: 1e-4, 3: 1e-4}, 4, "fewer than 3 clients have any weight"),
        ({0: 1.0, 1: 1.0, 2: 1.0}, 8, "3 of 8 are too few to take the masks off"),
    ],
)
def test_a_sum_that_would_show_somebody_is_not_even_begun(weights, clients, why):
    def silent(carry):
        def nothing(step, messages):
            raise AssertionError(f"{step} was carried")

        return nothing

    with pytest.raises(UnsummableError, match=why):
        aggregated(weights, updates(clients), clients, carried=silent)


def test_who_fails_on_the_way_is_told_of_and_left_out_of_the_sum():
    told = {}

    def broken(carry):
        def carried(step, messages):
            replies = carry(step, messages)
            return {c: b"?" if (c, step) == (3, "masked") else reply for c, reply in replies.items()}

        return carried

    def refuse(client, error):
        assert isinstance(error, RefusedError)
        told[client] = str(error)

    values, weights = updates(8), dict.fromkeys(range(8), 1.0)
    masked, _ = aggregated(weights, values, 8, carried=broken, refuse=refuse)
    assert list(told) == [3]
    rest = {client: 1.0 for client in range(8) if client != 3}
    assert flatten(masked.total) == pytest.approx(
        flatten(StepSum(None, rng).sum_open(rest, values, LAYOUT).total), abs=1e-6
    )


# ---- both -----------------------------------------------------------------------------------------------------------


def test_a_simulation_and_sites_come_to_the_same_sum_at_the_same_cost(tmp_path):
    make(tmp_path / "keys", SITES)
    wish = SMALL | {"privacy.aggregate": "masked", "train.rounds": 2}
    here = train(overrides=wish, out=tmp_path / "here")
    credentials = Credentials.load(tmp_path / "keys" / "server")
    transport = with_keys(tmp_path / "keys", wish)
    there = run_at_sites(
        transport, Experiment.of(None, **wish), tmp_path / "there", len(SITES), credentials=credentials
    )
    assert torch.equal(model(here), model(there))
    assert {key: here.summary[key] for key in ("bytes_up", "bytes_down")} == {
        key: there.summary[key] for key in ("bytes_up", "bytes_down")
    }
