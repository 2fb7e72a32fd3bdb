"""The server's half of a chain that it cannot read: it knows who holds the model, and carries sealed envelopes.

A hop that is not the last leaves its outcome at its site (`site/chain.py`); the server's own model stays as it is, and
for the loop the hop has moved nothing. The next site gets an envelope from the one before it. At the end of the chain
the server gets the model, and the loop what that is beyond the model it has.

Who fails is passed over. The sites on the way hold what they trained, so a chain goes on from the last one that can
still hand it on; also in the next round, where the last site of this one did not report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fedstrata.core.events import Log
from fedstrata.core.messages import Report, Tag, Task, fast_replace, tensor_bytes
from fedstrata.core.plan import Plan
from fedstrata.core.steps import Step
from fedstrata.core.wire import pack_task, unpack_report
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.methods.combiners.uniform import Uniform
from fedstrata.privacy.envelopes import job_of, read_envelope, read_hello
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.identity import KeyDirectory
from fedstrata.remote.protocol import SPOILT, STALE, build_request, to_json
from fedstrata.remote.report_shapes import MOVES, expected_shapes

Replies = dict[str, tuple[bytes, ...]]
Tell = Callable[[Mapping[str, bytes]], Replies]  # requests by site; replies have one field
Send = Callable[[Sequence[Task], Callable[[Task], bytes]], Replies]  # tasks, and how they are written


def unsealable(plan: Plan) -> str | None:
    """Say why the server must read every model of a chain; None: it need not."""
    told = [
        name for name, part in plan.local.parts.items() if part.declare_aggregated(plan.space) or part.opens_tensors
    ]
    at_server = [name for name in plan.server_steps if name not in ("server_step", "optimizer")]
    if plan.combiner not in (SizeWeighted(), Uniform()):
        return f"{type(plan.combiner).__name__} acts on what every hop sends"
    if plan.selector.individual:
        return f"{type(plan.selector).__name__} looks at what every hop sends"
    if names := sorted({*told, *at_server}):
        return f"every hop sends something of {', '.join(names)} to the server"
    return None


@dataclass(frozen=True)
class ModelHolder:
    """Where a chain's model lies: at a client, since a step."""

    client: int
    at: Tag


class SealedChain:
    """Runs the hops of chains."""

    def __init__(self, names: Sequence[str], key_directory: KeyDirectory, run: str, plan: Plan, note: Log):
        self._names, self._key_directory, self._run, self._note = names, key_directory, run, note
        shapes = expected_shapes(plan, "train") or {}
        self._still = {name: torch.zeros(shapes[name], dtype=plan.local.dtype) for name in MOVES if name in shapes}
        self._hellos: dict[int, bytes] = {}
        self._trail: list[ModelHolder] = []  # who holds what since the server had the model; the latest is the last
        self._hop: tuple[Step, Task] | None = None  # under way
        self._bytes = Counter[str]()

    @property
    def overhead_bytes(self) -> tuple[int, int]:
        """Return the bytes that the last hop took, up and down, beyond one model, which the loop accounts for."""
        took = self._bytes
        return took["hello"] + took["sealed"], took["asked"] + took["sealed"] - min(took["model"], took["sealed"])

    def ask(self, step: Step, task: Task, tell: Tell, send: Send) -> Replies:
        """Bring the model to a site, wherever it is, and let it train."""
        self._hop, self._bytes = (step, task), Counter(model=tensor_bytes(task.down))
        name, before = self._names[task.client], self._hellos.get(task.client)
        while (found := self._handed_on(task, tell)) is not None:
            place, envelope = found
            said = send([task], self._written(place, envelope, task.client, step.sink == "server"))
            what, why = said.get(name, (b"", b""))
            if what == SPOILT and place is not None:
                self._passed_over(place, task, why.decode(errors="replace"))
            elif what == STALE and before is not None and before == self._hellos.pop(task.client, None):
                continue  # it says hello again, once
            else:
                return said
        return {}

    def read(self, report: Report, data: bytes) -> Report:
        """Say what a hop means for the model of the server: nothing yet, or all that the chain did to it."""
        assert self._hop is not None
        step, task = self._hop
        if step.sink == "peer":
            rest = {name: tensor for name, tensor in task.down.items() if name not in MOVES.values()}
            return fast_replace(report, aggregated=self._still | rest)
        aggregated = {name: t - task.down[MOVES[name]] if name in MOVES else t for name, t in report.aggregated.items()}
        return fast_replace(report, aggregated=aggregated, update_norm=float(unpack_report(data).update_norm))

    def distrust(self) -> None:
        """Begin anew from the server's model, where what a chain ended with cannot be a model."""
        if self._hop is not None and self._hop[0].sink == "server" and self._trail:
            self._trail = []
            self._fell_back(self._hop[1], "what this chain ended with was refused", "the model of the server")

    def settle(self, accepted: Collection[int]) -> None:
        """Note where the model is now."""
        if self._hop is None:
            return
        (step, task), self._hop = self._hop, None
        if task.client in accepted:
            self._trail = (
                [*self._trail, ModelHolder(task.client, (task.round, task.step))] if step.sink == "peer" else []
            )
        elif step.sink == "server" and self._trail:
            holder = self._names[self._trail[-1].client]
            self._fell_back(
                task,
                f"the report that ends it is missing; the next step goes on from what site {holder} holds, unless the "
                "server is restarted before",
                "the model before the chain",
            )

    def _handed_on(self, task: Task, tell: Tell) -> tuple[ModelHolder | None, bytes] | None:
        """Find who has the model, and get it sealed for the site; None where that site does not answer."""
        while self._trail:
            place = self._trail[-1]
            if place.client == task.client:
                return place, b""
            hello = self._hello(task, tell)
            if hello is None:
                return None
            about = to_json({"what": place.at, "to": task.client, "at": (task.round, task.step)})
            request = build_request("hand_on", about, hello)
            said = tell({self._names[place.client]: request})
            try:
                if not said:
                    raise RefusedError("it did not hand the model on")
                (envelope,) = said[self._names[place.client]]
                read_envelope(
                    envelope, self._key_directory, job_of(self._run, task.round, task.step), place.client, task.client
                )
            except RefusedError as error:
                self._passed_over(place, task, str(error))
                continue
            self._bytes.update(asked=len(request), sealed=len(envelope))
            return place, envelope
        return None, b""

    def _written(self, place: ModelHolder | None, envelope: bytes, client: int, last: bool) -> Callable[[Task], bytes]:
        """Say how the task of a hop is written: where an envelope brings the model, or the site has it, without one."""
        about = {
            "holder": None if place is None else place.client,
            "what": None if place is None else place.at,
            "keep": [mark.at for mark in self._trail if mark.client == client][-1:],
            "last": last,
        }

        def request(task: Task) -> bytes:
            light = task if place is None else replace(task, down={})
            return build_request("hop", pack_task(light), to_json(about), envelope)

        return request

    def _hello(self, task: Task, tell: Tell) -> bytes | None:
        """Return the key under which a site can be reached; it is asked for once."""
        if task.client not in self._hellos:
            name = self._names[task.client]
            said = tell({name: build_request("hello")})
            if name not in said:
                return None
            (hello,) = said[name]
            try:
                read_hello(hello, self._key_directory, job_of(self._run), task.client)
            except RefusedError as error:
                self._left_out(task, str(error))
                return None
            self._hellos[task.client] = hello
            self._bytes["hello"] += len(hello)
        return self._hellos[task.client]

    def _passed_over(self, place: ModelHolder, task: Task, why: str) -> None:
        """Go back to who had the model before a site that cannot hand it on."""
        self._trail = [mark for mark in self._trail if mark.client != place.client]
        used = f"that of site {self._names[self._trail[-1].client]}" if self._trail else "that of the server"
        self._fell_back(task, f"site {self._names[place.client]}: {why}", used)

    def _fell_back(self, task: Task, why: str, used: str) -> None:
        at = {"round": task.round + 1, "step": task.step}
        self._note("fallback", **at, what="the model of a chain", used=used, why=why)

    def _left_out(self, task: Task, why: str) -> None:
        at = {"round": task.round + 1, "step": task.step}
        self._note("site_refused", **at, site=self._names[task.client], client=task.client, why=why)
