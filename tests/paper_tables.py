"""A table that no paper printed, small enough to be reproduced in tests."""

TEXT = """
[paper]
id = "X1"
paper = "fedbss"
what = "Table 1, digits"
claim = "FedProx is better than FedAvg."
status = "A"
method = "fedprox"
seeds = 6
notes = ["a note"]

[paper.figures.accuracy]
fedavg = [50.0, 60.0]
fedprox = [52.0, 64.0]

[paper.deviations.accuracy]
fedprox = [0.1, 2.0]

[paper.readings]
"more local work" = { train.epochs = 2 }
"the best evaluation" = { compare.metric = "best_accuracy" }

[paper.quick]
data = { name = "digits", clients = 4 }
model = { name = "mlp", hidden = [8] }
train = { rounds = 1 }

[data]
clients = 5

[train]
rounds = 2  # not stated: a choice of ours
clients_per_round = 2

[engine]
workers = 1

[compare]
methods = ["fedavg", "fedprox", "fedlc"]
seeds = 2

[[compare.condition]]
name = "few"
train.epochs = 1

[[compare.condition]]
name = "many"
train.batch_size = 8
"""
