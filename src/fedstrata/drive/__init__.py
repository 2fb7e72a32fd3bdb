"""Drivers: the shape of a round."""

PARTS = {
    "rounds": "fedstrata.drive.rounds:Rounds",
    "chain": "fedstrata.drive.chain:Chain",
    "sync": "fedstrata.drive.sync:Sync",
    "terraform": "fedstrata.drive.terraform:Terraform",
}
