"""Random streams by key: the same everywhere, and apart from each other."""

import os
import subprocess
import sys
from itertools import combinations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.core.rng import Streams

BASE = {"seed": 0, "purpose": "select", "round": 1, "step": 2, "client": 3}
OTHERS = {
    "seed": [1, 10, 2**40],
    "purpose": ["selec", "select1", "sample", ""],
    "round": [-1, 0, 2, 11],
    "step": [0, 1, 22],
    "client": [-1, 0, 33, 10**6],
}


def stream(seed, purpose, round, step, client):
    return Streams(seed)(purpose, round, step, client)


def test_the_same_key_gives_the_same_draws_from_the_start():
    assert stream(**BASE).random(5).tolist() == stream(**BASE).random(5).tolist()


def test_every_change_of_a_key_changes_the_draws():
    keys = [BASE] + [BASE | {name: value} for name, values in OTHERS.items() for value in values]
    draws = [stream(**key).random(4).tolist() for key in keys]
    assert all(a != b for a, b in combinations(draws, 2))
    seeds = [Streams(k.pop("seed")).torch_seed(**k) for k in map(dict, keys)]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= s < 2**63 for s in seeds)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
@settings(deadline=None, derandomize=True)
def test_fields_do_not_run_into_each_other(a, b, c):
    streams = Streams(0)
    keys = {streams.key("p", *order) for order in ((a, b, c), (b, c, a), (c, a, b))}
    assert len(keys) == len({(a, b, c), (b, c, a), (c, a, b)})
    assert Streams(a).key(f"{b}|p") != Streams(a).key("p", b)


def test_what_one_stream_draws_does_not_shift_another():
    alone = Streams(0)("sample").random(3).tolist()
    streams = Streams(0)
    streams("select").random(1000)
    first = streams("sample")
    streams("select").random(7)
    assert first.random(3).tolist() == alone


def test_streams_of_neighbouring_clients_are_independent():
    draws = np.array([Streams(0)("noise", client=c).standard_normal(1000) for c in range(50)])
    correlations = np.corrcoef(draws)[np.triu_indices(50, 1)]
    assert abs(correlations).max() < 0.15  # 4.7 standard errors of 1/sqrt(1000)
    assert abs(draws[:, 0].mean()) < 0.5  # first draws of neighbours, 3.5 standard errors
    assert 0.5 < draws[:, 0].std() < 1.5


def test_numpy_ids_name_the_same_stream():
    assert Streams(0).key("p", np.int64(1), np.int32(2), np.int64(3)) == Streams(0).key("p", 1, 2, 3)


def test_no_global_random_state_is_read_or_written():
    np.random.seed(0)  # noqa: NPY002  the global state is what is under test
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    first = stream(**BASE).random(3).tolist()
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert stream(**BASE).random(3).tolist() == first


def test_keys_are_the_same_in_every_process_and_under_every_hash_seed():
    code = (
        "from fedstrata.core.rng import Streams; s = Streams(7);"
        "print(s.key('select', 1, 2, 3), s('select', 1, 2, 3).random(3).tolist(), s.torch_seed('model'))"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    env = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    s = Streams(7)
    here = f"{s.key('select', 1, 2, 3)} {s('select', 1, 2, 3).random(3).tolist()} {s.torch_seed('model')}"
    assert done.stdout.strip() == here
