"""Selectors: which clients train."""

PARTS = {
    "random": "fedstrata.select.random:Random",
    "everyone": "fedstrata.select.everyone:Everyone",
    "size": "fedstrata.select.size:Size",
    "power-of-choice": "fedstrata.select.power_of_choice:PowerOfChoice",
}
