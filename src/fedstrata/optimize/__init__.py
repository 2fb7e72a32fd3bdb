"""Local optimizers: how a client's weights follow its gradient. State is fresh at every visit."""

PARTS = {
    "sgd": "fedstrata.optimize.sgd:Sgd",
    "adam": "fedstrata.optimize.adam:Adam",
}
