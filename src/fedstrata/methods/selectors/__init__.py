"""Selectors: which clients train."""

PARTS = {
    "random": "fedstrata.methods.selectors.random:Random",
    "everyone": "fedstrata.methods.selectors.everyone:Everyone",
    "size": "fedstrata.methods.selectors.size:SelectBySize",
    "flips": "fedstrata.methods.selectors.flips:Flips",
    "balanced-labels": "fedstrata.methods.selectors.balanced_labels:BalancedLabels",
    "power-of-choice": "fedstrata.methods.selectors.power_of_choice:PowerOfChoice",
    "oort": "fedstrata.methods.selectors.oort:Oort",
    "tifl": "fedstrata.methods.selectors.tifl:Tifl",
    "clustered-size": "fedstrata.methods.selectors.clustered_size:ClusteredSize",
    "gradclus": "fedstrata.methods.selectors.gradclus:GradClus",
    "hics": "fedstrata.methods.selectors.hics:Hics",
    "divfl": "fedstrata.methods.selectors.divfl:DivFl",
    "sur": "fedstrata.methods.selectors.sur:Sur",
}
