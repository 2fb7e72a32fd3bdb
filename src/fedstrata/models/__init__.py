"""Models by name, one file a family."""

PARTS = {
    "mlp": "fedstrata.models.mlp:Mlp",
    "lenet5": "fedstrata.models.lenet5:LeNet5",
}
