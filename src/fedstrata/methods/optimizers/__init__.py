"""Optimizers: how weights follow a gradient, at a client or, where a batch spans clients, at the server."""

PARTS = {
    "sgd": "fedstrata.methods.optimizers.sgd:Sgd",
    "adam": "fedstrata.methods.optimizers.adam:Adam",
    "adamw": "fedstrata.methods.optimizers.adam:AdamW",
}
