"""Samplers: which of a client's samples, in which order."""

PARTS = {
    "shuffle": "fedstrata.sample.shuffle:Shuffle",
    "full-batch": "fedstrata.sample.full_batch:FullBatch",
    "bias-aware": "fedstrata.sample.bias_aware:BiasAware",
}
