"""Combiners: how updates become one."""

PARTS = {
    "size": "fedstrata.combine.size:Size",
    "uniform": "fedstrata.combine.uniform:Uniform",
    "soft": "fedstrata.combine.soft:Soft",
    "inverse-probability": "fedstrata.combine.inverse_probability:InverseProbability",
    "fednova": "fedstrata.combine.fednova:FedNova",
    "fedcda": "fedstrata.combine.fedcda:FedCda",
    "inco": "fedstrata.combine.inco:InCo",
    "fedga-greedy": "fedstrata.combine.fedga_greedy:FedGaGreedy",
    "median": "fedstrata.combine.robust:Median",
    "trimmed-mean": "fedstrata.combine.robust:TrimmedMean",
    "norm-clip": "fedstrata.combine.robust:NormClip",
}
