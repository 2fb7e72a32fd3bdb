"""Server steps: how the combined update moves the model."""

PARTS = {
    "sgd": "fedstrata.methods.server_steps.sgd:Sgd",
    "adagrad": "fedstrata.methods.server_steps.adaptive:Adagrad",
    "adam": "fedstrata.methods.server_steps.adaptive:Adam",
    "yogi": "fedstrata.methods.server_steps.adaptive:Yogi",
    "fedexp": "fedstrata.methods.server_steps.fedexp:FedExp",
}
