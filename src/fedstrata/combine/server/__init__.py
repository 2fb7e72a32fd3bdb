"""Server steps: how the combined update moves the model."""

PARTS = {
    "sgd": "fedstrata.combine.server.sgd:Sgd",
    "adagrad": "fedstrata.combine.server.adaptive:Adagrad",
    "adam": "fedstrata.combine.server.adaptive:Adam",
    "yogi": "fedstrata.combine.server.adaptive:Yogi",
    "fedexp": "fedstrata.combine.server.fedexp:FedExp",
}
