"""Partitions: how samples are dealt out to clients, one file a family."""

PARTS = {
    "iid": "fedstrata.data.partitions.iid:Iid",
    "dirichlet-class": "fedstrata.data.partitions.dirichlet:DirichletClass",
    "labels-per-client": "fedstrata.data.partitions.labels:LabelsPerClient",
}
