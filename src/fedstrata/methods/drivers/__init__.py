"""Drivers: the shape of a round."""

PARTS = {
    "rounds": "fedstrata.methods.drivers.rounds:Rounds",
    "chain": "fedstrata.methods.drivers.chain:Chain",
    "sync": "fedstrata.methods.drivers.sync:Sync",
    "terraform": "fedstrata.methods.drivers.terraform:Terraform",
}
