"""Optimizers: how weights follow a gradient, at a client or, where a batch spans clients, at the server."""

PARTS = {
    "sgd": "fedstrata.optimize.sgd:Sgd",
    "adam": "fedstrata.optimize.adam:Adam",
}
