"""An operator's word to a run: signed with the operator's key, held against the roll, and written down."""

from __future__ import annotations

import getpass
from pathlib import Path

from fedstrata.core.errors import RequestError
from fedstrata.deploy.keys import refuse_readable
from fedstrata.deploy.operators.run_queue import Ticket, control_of, find, log
from fedstrata.deploy.operators.submit import roll_of
from fedstrata.deploy.server.federation_server import FederationServer
from fedstrata.remote.server.orders import FILE, Action, OperatorOrder, give_order, operator_key


def order(server: FederationServer, action: Action, run: str, operator: Path | None) -> str:
    """Sign an operator's word to a run and write it down; say what comes of it."""
    ticket = find(server.folder, run)
    said = _signed(server, action, ticket.id, operator)
    if action not in (now := actions(server, ticket)):
        raise RequestError(
            f"{ticket.words} cannot be told to {action}; what it can be told: {', '.join(now) or 'nothing'}"
        )
    give_order(server.folder / FILE, said)
    log(server, "operator_said", action=said.action, operator=said.operator, **ticket.about())
    return f"{said.operator} said {action} to {ticket.words}"


def name_operator(server: FederationServer, operator: Path | None) -> str:
    """Return who would give orders; refuse a key that does not count."""
    return _signed(server, "pause", "", operator).operator


def _signed(server: FederationServer, action: Action, run: str, operator: Path | None) -> OperatorOrder:
    roll = roll_of(server)
    if roll is None:
        return OperatorOrder.of(action, run, getpass.getuser(), None)
    if operator is None:
        raise RequestError("--operator is required: a folder that `fedstrata deploy keys operator DIR NAME` made")
    name, identity = operator_key(operator)
    refuse_readable(operator / "identity.json")
    said = OperatorOrder.of(action, run, name, identity)
    if not said.counts(roll):
        known = ", ".join(sorted(roll.operators)) or "none"
        raise RequestError(f"{name} is no operator on the server's roll; operators: {known}")
    return said


def actions(server: FederationServer, ticket: Ticket) -> tuple[Action, ...]:
    """Return what can be said to a run now; whoever reads orders would not heed anything else."""
    control = control_of(server, ticket)
    if control.latest("stop", "refuse") is not None:
        return ()
    if not ticket.submitted:
        asks = server.approval and control.latest("approve") is None
        return ("approve", "refuse") if asks else ("stop",)
    word = control.latest("pause", "continue")
    return ("continue" if word is not None and word.action == "pause" else "pause", "stop")
