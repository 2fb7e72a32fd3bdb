"""Partitions: how samples are dealt out to clients, one file a family."""

PARTS = {
    "iid": "fedstrata.data.partitions.iid:Iid",
    "labels-per-client": "fedstrata.data.partitions.labels:LabelsPerClient",
    "domains-per-client": "fedstrata.data.partitions.labels:DomainsPerClient",
    "concentrated-domain": "fedstrata.data.partitions.concentrated:ConcentratedDomain",
    "dirichlet-class": "fedstrata.data.partitions.dirichlet:DirichletClass",
    "dirichlet-client": "fedstrata.data.partitions.dirichlet_client:DirichletClient",
    "dirichlet-domain": "fedstrata.data.partitions.dirichlet:DirichletDomain",
    "mixed-alpha": "fedstrata.data.partitions.mixed_alpha:MixedAlpha",
    "shards": "fedstrata.data.partitions.shards:Shards",
    "quantity": "fedstrata.data.partitions.quantity:Quantity",
    "flwr": "fedstrata.data.partitions.flwr:FlowerPartition",
    "natural": "fedstrata.data.partitions.natural:Natural",
}
