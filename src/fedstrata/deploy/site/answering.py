"""Messages are answered inside the SuperNode: no program is started for them, and no port is opened.

As shipped, a SuperNode serves an interface on a port of its machine, keeps a second process that asks there for work
ten times a second, and starts a third one for every message. Our app only hands bytes to the site's own process, which
needs none of that. What is patched here are Flower's own names (1.41, 1.42); where one is missing, the site does not
start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedstrata.core.errors import FedstrataError
from fedstrata.deploy.served import ANNOUNCED
from fedstrata.remote.flower.app_config import NodeConfig
from fedstrata.remote.site.private_socket import WAKE, ask

HELD = 1.0  # seconds: a look for messages that took longer was held by the server until there was one, or for a while
AT_ONCE = 0.05  # seconds before the next look then
SOON = 0.3  # seconds between two looks at a server that holds none, in the time after a message
SHORT = 10.0  # seconds in which a site that is woken must have taken note
BUSY = 60.0  # seconds after a message in which the next one is likely
PULL, PUSH = "_pull_and_store_message", "_push_messages"  # Flower's names for a look, and for sending what was answered


def answer_here(node: Any, app: Any) -> None:
    """Let the module of a SuperNode's loop answer messages with an app, in its own thread, before it sends replies."""
    push, insert = getattr(node, PUSH), node._insert_message
    inflate = import_module("flwr.supercore.inflatable.inflatable_utils").inflate_object_from_contents
    walk = node.iterate_object_tree
    context_of, records, stopped = node.Context, node.RecordDict, node.SubStatus.STOPPED

    def pushed(state: Any, object_store: Any, **ways: Any) -> None:
        for task in state.get_tasks():  # what Flower notes for a process that would answer
            state.finish_task(task.task_id, stopped, "answered in this process")
        for told in state.get_messages_legacy(is_reply=False):
            about = told.metadata
            state.record_message_processing_start(about.message_id)
            tree = object_store.get_object_tree(about.message_id)
            contents = {each.object_id: object_store.get(each.object_id) for each in walk(tree)}
            object_store.delete(about.message_id)
            message = inflate(about.message_id, contents, keep_object_contents=False)
            message.metadata.__dict__["_message_id"] = about.message_id
            known = state.get_run_series_context(state.get_run(about.run_id).series_id)
            context = context_of(about.run_id, state.get_node_id(), known.node_config, records(), {})
            insert(app(message, context), state, object_store)
            state.record_message_processing_end(about.message_id)
        push(state=state, object_store=object_store, **ways)

    setattr(node, PUSH, pushed)


def look_often(node: Any, announced: threading.Event) -> None:
    """Let a SuperNode's loop look for messages again as soon as a held look is over; and often after a message.

    After a look that was answered with the announcement of a run, the site is woken first.
    """
    pull, latest, took = getattr(node, PULL), float("-inf"), 0.0

    def pulled(*, node_config: Mapping[str, object], **about: Any) -> Any:
        nonlocal latest, took
        began = time.monotonic()
        run = pull(node_config=node_config, **about)
        took = time.monotonic() - began
        if announced.is_set():
            announced.clear()
            took = HELD  # it would have been held, and there will be a message soon
            with suppress(FedstrataError):  # whatever is wrong with the site is said when it is asked
                ask(Path(NodeConfig.of(node_config).socket), WAKE, SHORT)
        latest = latest if run is None else time.monotonic()
        return run

    def sleep(seconds: float) -> None:
        if took >= HELD:
            seconds = AT_ONCE
        elif time.monotonic() < latest + BUSY:
            seconds = min(seconds, SOON)
        time.sleep(seconds)

    setattr(node, PULL, pulled)
    node.time = SimpleNamespace(sleep=sleep)


def hear(connection: Any) -> threading.Event:
    """Let the module of a SuperNode's connection note when the server announces a run; return the note."""
    announced = threading.Event()

    class Hearing(connection.NodeAuthHttpInterceptor):  # type: ignore[misc]
        """Goes around every request."""

        def intercept(self, context: Any, call_next: Any) -> Any:
            """Look at the answer's headers."""
            answer = super().intercept(context, call_next)
            if ANNOUNCED in answer.headers:
                announced.set()
            return answer

    connection.NodeAuthHttpInterceptor = Hearing
    return announced


def without_port(command: Any) -> None:
    """Let the module of Flower's command start no server of its own: who answers is in the same process."""
    _ = command._start_supernode_http_api  # it must be there
    nobody = SimpleNamespace(join=lambda **_: None, is_alive=lambda: False)
    command._start_supernode_http_api = lambda *_: (SimpleNamespace(), nobody)
