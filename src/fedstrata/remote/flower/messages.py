"""Requests as Flower messages: one that is sent and one that comes back, through the server's Grid.

The Grid knows node ids, and we know sites by name: a node is asked for its name when it joins, once. With keys, only
the name that its key was made for will do. A node that left loses its name; of two that claim the same one, the first
keeps it for as long as it is there. Replies are asked for
here, several times a second at first: Flower's own way looks every three seconds. Not more often, because every look
takes time from the server, which may be the machine that has to answer. They are fetched one by one, so that a reply
that cannot even be read harms nobody but its sender.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from httpx import HTTPError

from fedstrata.core.errors import FedstrataError
from fedstrata.remote.flower.invitation import FORMS
from fedstrata.remote.flower.records import unwrap, wrap
from fedstrata.remote.transport import SMALL, Failure

SOONEST, LATEST = 0.1, 1.0  # seconds between two looks for replies
RARELY = 3.0  # the same, where a reply is not expected before the run is over: a look costs the server milliseconds
NAMING = 120.0  # seconds in which a node can say its name, before it is asked again
AGAIN = 10.0  # seconds until a node that could not say its name is asked again
SLACK = 5.0  # seconds that a message outlives its deadline: what is late on its way is not what is late
ALWAYS = 20 * 86_400.0  # seconds that a message without a deadline is kept; Flower would forget it after half a day


class Messages:
    """A transport over Flower's Grid; several threads may use it."""

    def __init__(
        self,
        grid: Grid,
        longest: int = SMALL,
        say: Callable[[str], None] = lambda _: None,
        met: Callable[[int, str], None] = lambda *_: None,
        registered: Callable[[], Mapping[int, str]] | None = None,  # node -> whose key it has; None: there are no keys
    ):
        self._grid, self.longest, self._say, self._met = grid, longest, say, met
        self._registered = registered
        self._sites: dict[int, str] = {}  # node -> its site
        self._questions: dict[int, tuple[str, float]] = {}  # node -> the message that asked who it is, and until when
        self._sent, self._awaited = 0, list[str]()
        self._lock = threading.RLock()  # around every use of the Grid
        self._closed = threading.Event()

    def names(self) -> list[str]:
        """Return the sites that are there and have said who they are. Waits for nobody."""
        with self._lock:
            self._look_around()
            return sorted(self._sites.values())

    reachable = names

    def invite(self, sites: Collection[str]) -> None:
        """Do nothing: who is reachable is there."""

    def registrations(self) -> Mapping[str, int] | None:
        """Return the node that each site's key is registered as now; None: there are no keys."""
        return None if self._registered is None else {site: node for node, site in self._registered().items()}

    def exchange(
        self,
        requests: Mapping[str, bytes],
        deadline: float | None = None,
        enough: int | None = None,
        hurry: threading.Event | None = None,
    ) -> dict[str, bytes | Failure]:
        """Send each named site its request; a site that is not there is not waited for.

        With `hurry`, replies are expected late, and looked for now and then until it is set.
        """
        began, wanted = monotonic(), len(requests) if enough is None else enough
        waiting, replies = self._send(requests, deadline), dict[str, bytes | Failure]()
        while waiting and not self._closed.is_set():
            self._awaited = list(waiting)
            looked = monotonic()
            for name, (node, sent) in list(waiting.items()):
                if (reply := self._reply(node, sent)) is not None:
                    del waiting[name]
                    replies[name] = reply
            now = monotonic()
            left = float("inf") if deadline is None else began + deadline - now
            if left <= 0 or sum(isinstance(reply, bytes) for reply in replies.values()) >= wanted or not waiting:
                break
            pause = max(SOONEST, min((now - began) / 10, LATEST), now - looked)  # a wait grows by a tenth at most
            if hurry is None or hurry.is_set():
                self._closed.wait(min(pause, left))
            else:
                hurry.wait(min(max(LATEST, min((now - began) / 10, RARELY)), left))
        self._awaited = []
        return replies

    def awaited(self) -> list[str]:
        """Return the sites that have not answered yet."""
        return list(self._awaited)

    def close(self) -> None:
        """Let whoever waits go on without replies."""
        self._closed.set()

    def _send(self, requests: Mapping[str, bytes], deadline: float | None) -> dict[str, tuple[int, str]]:
        """Send, and give for each site that is there its node and the message's id."""
        with self._lock:
            if not set(requests) <= set(self._sites.values()):
                self._look_around()
            nodes = {name: node for node, name in self._sites.items() if name in requests}
            self._sent += 1
            ttl, group = ALWAYS if deadline is None else deadline + SLACK, str(self._sent)
            posted = {
                name: Message(wrap(requests[name]), nodes[name], "train", ttl=ttl, group_id=group) for name in nodes
            }
            ids = self._push(list(posted.values()))
            return {name: (node, sent) for (name, node), sent in zip(nodes.items(), ids, strict=True)}

    def _push(self, messages: Sequence[Message]) -> list[str]:
        """Hand messages to Flower; those that it did not take have no id."""
        ids = [sent or "" for sent in self._grid.push_messages(messages)] if messages else []
        return ids or [""] * len(messages)  # nothing at all comes back where they are too long for it

    def _reply(self, node: int, sent: str) -> bytes | Failure | None:
        """Return the reply to a message, or None while there is none."""
        reply = self._pull(node, sent)
        try:
            return unwrap(reply.content, self.longest) if isinstance(reply, Message) else reply
        except FedstrataError as error:
            return Failure(str(error))

    def _pull(self, node: int, sent: str) -> Message | Failure | None:
        if not sent:
            return Failure("Flower did not take the message")
        try:
            with self._lock:
                found = list(self._grid.pull_messages([sent]))
        except HTTPError:
            raise  # the server itself is gone
        except Exception as error:  # whatever a site's bytes can do to Flower's readers
            return Failure(f"its reply cannot be read: {type(error).__name__}")
        reply = next((reply for reply in found if reply.metadata.reply_to_message_id == sent), None)
        if reply is None:
            return None
        if reply.has_error():
            return Failure(str(reply.error.reason or "no reason given"))
        return reply if reply.metadata.src_node_id == node else Failure("its reply comes from another node")

    # ---- who is who

    def _look_around(self) -> None:
        """Forget nodes that left, read the names that came, and ask new nodes for theirs."""
        there, now = set(self._grid.get_node_ids()), monotonic()
        if self._registered is not None:  # a key that was revoked, or renewed, is nobody's
            known = self._registered()
            there = {node for node in there if node not in self._sites or known.get(node) == self._sites[node]}
        for node in set(self._sites) - there:
            self._say(f"site {self._sites.pop(node)} has left")
        self._questions = {node: question for node, question in self._questions.items() if node in there}
        for node, (sent, _) in list(self._questions.items()):
            if sent and (reply := self._pull(node, sent)) is not None:
                self._questions[node] = ("", now + AGAIN)
                self._introduced(node, reply)
        unknown = there - set(self._sites)
        new = sorted(node for node in unknown if self._questions.get(node, ("", 0.0))[1] <= now)
        questions = [Message(RecordDict(), node, "query.site", ttl=NAMING) for node in new]
        self._questions |= {node: (sent, now + NAMING) for node, sent in zip(new, self._push(questions), strict=True)}

    def _introduced(self, node: int, reply: Message | Failure) -> None:
        """Take a node's answer to who it is."""
        if isinstance(reply, Failure):
            return self._say(f"node {node} does not say which site it is: {reply.reason}")
        record = reply.content.get("site")
        name = record.get("name") if isinstance(record, ConfigRecord) else None
        if not isinstance(name, str) or not re.fullmatch(FORMS["site"], name):
            return self._say(f"node {node} gives a name that is none: {str(name)[:80]!r}")
        if self._registered is not None and self._registered().get(node) != name:
            return self._say(f"node {node} says that it is site {name}, and does not have the key of that site")
        if name in self._sites.values():
            return self._say(f"node {node} says that it is site {name}, and another one is that already")
        self._sites[node] = name
        self._met(node, name)
        del self._questions[node]
        return self._say(f"site {name} is there")
