"""What answers Flower's messages at a site: it hands the request to the site's own process, and no more.

Our SuperNode keeps it in memory (`deploy/site/answering.py`), a plain one starts a new Python for each message: no
torch.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedstrata.core.errors import FedstrataError
from fedstrata.remote.flower.app_config import NodeConfig
from fedstrata.remote.flower.records import unwrap, wrap
from fedstrata.remote.site.private_socket import WAKE, ask

RAISED = 2  # Flower's own code for an app that could not answer

app = ClientApp()


@app.train()
def forward(message: Message, context: Context) -> Message:
    """Carry a request to the site's process and its reply back."""
    try:
        path = Path(NodeConfig.of(context.node_config).socket)
        reply = ask(path, unwrap(message.content), message.metadata.ttl)
    except FedstrataError as error:
        return Message(Error(RAISED, str(error)), reply_to=message)
    return Message(wrap(reply), reply_to=message)


@app.query("site")
def introduce(message: Message, context: Context) -> Message:
    """Say which site this is, if its process is there."""
    try:
        config = NodeConfig.of(context.node_config)
        ask(Path(config.socket), WAKE, 60.0)  # and its process, which may rest, knows that somebody will ask more
        record = ConfigRecord({"name": config.site})
    except FedstrataError as error:
        return Message(Error(RAISED, str(error)), reply_to=message)
    return Message(RecordDict({"site": record}), reply_to=message)
