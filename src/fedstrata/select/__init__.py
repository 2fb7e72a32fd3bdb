"""Selectors: which clients train."""

PARTS = {
    "random": "fedstrata.select.random:Random",
    "everyone": "fedstrata.select.everyone:Everyone",
    "size": "fedstrata.select.size:Size",
    "flips": "fedstrata.select.flips:Flips",
    "power-of-choice": "fedstrata.select.power_of_choice:PowerOfChoice",
    "oort": "fedstrata.select.oort:Oort",
    "tifl": "fedstrata.select.tifl:Tifl",
    "clustered-size": "fedstrata.select.clustered_size:ClusteredSize",
    "gradclus": "fedstrata.select.gradclus:GradClus",
    "hics": "fedstrata.select.hics:Hics",
    "divfl": "fedstrata.select.divfl:DivFl",
    "sur": "fedstrata.select.sur:Sur",
}
