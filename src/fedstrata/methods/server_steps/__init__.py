"""Server steps: how the combined update moves the model."""

PARTS = {
    "sgd": "fedstrata.methods.server_steps.sgd:ServerSgd",
    "adagrad": "fedstrata.methods.server_steps.adaptive:ServerAdagrad",
    "adam": "fedstrata.methods.server_steps.adaptive:ServerAdam",
    "yogi": "fedstrata.methods.server_steps.adaptive:ServerYogi",
    "fedexp": "fedstrata.methods.server_steps.fedexp:FedExp",
}
