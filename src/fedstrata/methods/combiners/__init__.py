"""Combiners: how updates become one."""

PARTS = {
    "size": "fedstrata.methods.combiners.size:SizeWeighted",
    "uniform": "fedstrata.methods.combiners.uniform:Uniform",
    "soft": "fedstrata.methods.combiners.soft:Soft",
    "inverse-probability": "fedstrata.methods.combiners.inverse_probability:InverseProbability",
    "fednova": "fedstrata.methods.combiners.fednova:FedNova",
    "fedcda": "fedstrata.methods.combiners.fedcda:FedCda",
    "latest-of-all": "fedstrata.methods.combiners.latest_of_all:LatestOfAll",
    "inco": "fedstrata.methods.combiners.inco:InCo",
    "fedga-greedy": "fedstrata.methods.combiners.fedga_greedy:FedGaGreedy",
    "median": "fedstrata.methods.combiners.robust:Median",
    "trimmed-mean": "fedstrata.methods.combiners.robust:TrimmedMean",
    "norm-clip": "fedstrata.methods.combiners.robust:NormClip",
    "krum": "fedstrata.methods.combiners.krum:Krum",
    "multi-krum": "fedstrata.methods.combiners.krum:MultiKrum",
    "geometric-median": "fedstrata.methods.combiners.geometric_median:GeometricMedian",
}
