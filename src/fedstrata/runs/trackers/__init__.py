"""Trackers: where the figures of runs are shown besides their folders, one tracker a file."""

PARTS = {
    "tensorboard": "fedstrata.runs.trackers.tensorboard:TensorBoard",
    "mlflow": "fedstrata.runs.trackers.mlflow:MLflow",
    "wandb": "fedstrata.runs.trackers.wandb:WeightsAndBiases",
}
