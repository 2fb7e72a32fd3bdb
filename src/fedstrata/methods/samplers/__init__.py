"""Samplers: which of a client's samples, in which order."""

PARTS = {
    "shuffle": "fedstrata.methods.samplers.shuffle:Shuffle",
    "full-batch": "fedstrata.methods.samplers.full_batch:FullBatch",
    "bias-aware": "fedstrata.methods.samplers.bias_aware:BiasAware",
}
