"""What Flower sets where it starts an app and carries a message; it has no public way to set it from outside."""

from __future__ import annotations

from flwr.supercore.task_identity import TaskIdentity


def pretend_to_be_started(monkeypatch):
    """Let Flower believe that it has started us."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def stamp(message, **told):
    """Write into a message's metadata what Flower writes on its way."""
    message.metadata.__dict__.update({f"_{name}": value for name, value in told.items()})
    return message
