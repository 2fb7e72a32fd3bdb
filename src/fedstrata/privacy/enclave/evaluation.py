"""The global test set inside the service: models go in, figures come out, samples never.

Figures are not nothing: a server that may send any model can learn about single samples from how the figures change.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from fedstrata.config.build import DTYPES, make_network_builder
from fedstrata.config.sections import ModelChoice
from fedstrata.core.client_parts import ClientPlan, LearningRate
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.index import Split
from fedstrata.core.inputs import Inputs
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Scores
from fedstrata.core.wire import pack, unpack
from fedstrata.data.federation import Federation
from fedstrata.data.reading import Samples
from fedstrata.methods.lr_schedules import Constant
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.methods.samplers.shuffle import Shuffle
from fedstrata.privacy.enclave.policy import Scoring, Terms
from fedstrata.privacy.frames import RefusedError
from fedstrata.server.evaluator import Evaluator


def pack_test_set(federation: Federation) -> bytes:
    """Write what the owner of the test set tells the service: samples, and whose clients' they are."""
    test, split = federation.test, federation.test_split
    names, codes = (None, None) if test.groups is None else np.unique(test.groups, return_inverse=True)
    tensors = {"x": test.x, "y": test.y, "rows": torch.from_numpy(split.rows), "starts": torch.from_numpy(split.starts)}
    if codes is not None:
        tensors["groups"] = torch.from_numpy(codes.astype(np.int64))
    return pack({"groups": None if names is None else [str(name) for name in names]}, tensors)


def build_evaluator(terms: Terms, scoring: Scoring, message: bytes) -> Evaluator:
    """Build the evaluator of an open run around a test set that came in secret."""
    try:
        header, tensors = unpack(message)
        names, x, y = header["groups"], tensors["x"], tensors["y"]
        split = Split(tensors["rows"].numpy(), tensors["starts"].numpy())
        groups = None if names is None else np.array(names)[tensors["groups"].numpy()]
    except (SafetensorError, LookupError, TypeError, ValueError):
        raise RefusedError("the test set is malformed") from None
    if tuple(x.shape) != (len(y), *scoring.shape) or len(split) != terms.clients:
        raise RefusedError("the test set does not fit the terms")
    nothing = Samples(x[:0], y[:0])
    federation = Federation(
        nothing, Samples(x, y, groups), Split.nothing(terms.clients), split, tuple(range(terms.classes))
    )
    return Evaluator(_local(terms, scoring), federation, clients=scoring.clients, satisfied_at=scoring.satisfied_at)


def _local(terms: Terms, scoring: Scoring) -> ClientPlan:
    """Return as much of a client side as evaluation needs: nobody trains here."""
    streams = Streams(terms.seed)
    return ClientPlan(
        build=make_network_builder(ModelChoice(**scoring.model), scoring.shape, terms.classes, streams),
        head=scoring.head,
        inputs=Inputs(scoring.scale, scoring.mean, scoring.std),
        sampler=Shuffle(),
        parts={},
        optimizer=Sgd(),
        programs={},
        epochs=1,
        batch_size=1,
        rate=LearningRate(1.0, Constant(), 1),
        streams=streams,
        dtype=DTYPES[scoring.precision],
        half=scoring.precision == "bf16",
    )


def pack_model(model: FlatModel) -> bytes:
    """Write a model."""
    return pack({}, {"params": model.params, "buffers": model.buffers})


def unpack_model(data: bytes) -> FlatModel:
    """Read it."""
    tensors = unpack(data)[1]
    return FlatModel(tensors["params"], tensors["buffers"])


def pack_scores(scores: Scores) -> bytes:
    """Write figures; numbers come back as they were."""
    told: dict[str, Any] = {"figures": dict(scores.figures), "clients": list(scores.clients.items())}
    return json.dumps(told).encode()


def unpack_scores(data: bytes) -> Scores:
    """Read them."""
    told = json.loads(data)
    return Scores(told["figures"], {int(client): accuracy for client, accuracy in told["clients"]})
