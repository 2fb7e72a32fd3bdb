"""What a site does round after round is an event once, and in how many rounds it did so stays known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from in_process_sites import at_sites

from fedstrata.core.errors import FedstrataError
from fedstrata.deploy.operators.status import count_contributions
from fedstrata.remote.protocol import build_refusal
from fedstrata.remote.server.away_once import once_while_away

FULL = "its disk is full"


class Rounds:
    """The events of three sites, of which bonn refuses in some rounds."""

    def __init__(self):
        self.registry = SimpleNamespace(names=["aachen", "bonn", "cologne"], away=set())
        self.events: list[tuple] = []
        self.say = once_while_away(self.registry, lambda kind, **fields: self.events.append((kind, fields)))

    def refuse(self, number, why=FULL, kind="site_refused"):
        self.say(kind, round=number, site="bonn", why=why)

    def end(self, number, there=(0, 2), **scores):
        if len(there) < 3:
            self.say("dropped", round=number, clients=[1], why="no answer")
        self.say("round", round=number, steps=[{"clients": list(there)}], **scores)

    def kinds(self):
        return [(kind, fields["round"]) for kind, fields in self.events if kind != "round"]

    def counted(self):
        return [fields.get("refused") for kind, fields in self.events if kind == "round"]


def test_a_refusal_is_said_once_until_the_site_is_back_and_then_in_how_many_rounds():
    rounds = Rounds()
    for number in (1, 2, 3):
        rounds.refuse(number)
        rounds.refuse(number)  # in another step
        rounds.end(number)
    rounds.end(4, there=(0, 2))  # it was not asked: nobody knows
    rounds.end(5, there=(0, 1, 2))
    rounds.refuse(6)
    rounds.end(6)
    refusals = [("site_refused", 1), ("dropped", 4), ("site_back", 5), ("site_refused", 6)]
    assert [said for said in rounds.kinds() if said != ("dropped", 6)] == refusals
    assert rounds.counted() == [{"bonn": 1}, {"bonn": 2}, {"bonn": 2}, None, None, None]
    (back,) = [fields for kind, fields in rounds.events if kind == "site_back"]
    assert (back["site"], back["client"]) == ("bonn", 1)
    assert "after 3 rounds" in back["why"]


def test_another_reason_is_said_and_another_number_in_it_is_not_another_reason():
    rounds = Rounds()
    for number, why in enumerate(("loss = 1.5e+30", "loss = 7e+31", FULL, FULL), 1):
        rounds.refuse(number, why)
        rounds.end(number)
    assert [said for said in rounds.kinds() if said[0] == "site_refused"] == [("site_refused", 1), ("site_refused", 3)]


def test_a_site_that_trains_and_is_refused_in_the_same_round_is_not_back():
    rounds = Rounds()
    for number in (1, 2, 3):
        rounds.refuse(number)
        rounds.end(number, there=(0, 1, 2))
    assert rounds.kinds() == [("site_refused", 1)]


def test_a_site_that_went_away_meanwhile_may_say_it_again():
    rounds = Rounds()
    rounds.refuse(1)
    rounds.end(1, there=(0, 1, 2))
    rounds.say("site_away", site="bonn", round=2)
    rounds.refuse(3)
    assert [kind for kind, _ in rounds.kinds()] == ["site_refused", "site_away", "site_refused"]


def test_who_does_not_score_is_said_once_until_it_scores():
    rounds = Rounds()
    for number in (1, 2, 3):  # the second is not evaluated
        if number != 2:
            rounds.refuse(number, kind="site_not_scored")
        rounds.end(number, there=(0, 1, 2), **({} if number == 2 else {"loss_test": 1.0}))
    rounds.end(4, there=(0, 1, 2), loss_test=1.0)
    rounds.refuse(5, kind="site_not_scored")
    assert rounds.kinds() == [("site_not_scored", 1), ("site_not_scored", 5)]


@pytest.mark.parametrize("until", [5, 99])
def test_a_run_with_a_site_whose_disk_is_full_for_a_while(tmp_path, until):
    tasks = []

    def tamper(name, kind, reply):
        tasks.append((name, kind))
        full = 2 < tasks.count(("bonn", "task")) < until and (name, kind) == ("bonn", "task")
        return build_refusal(FedstrataError(FULL)) if full else reply

    run = at_sites(tmp_path, {"train.rounds": 7}, tamper)
    said = [(e["event"], e["round"]) for e in run.events() if e["event"] in ("site_refused", "site_back")]
    assert said == [("site_refused", 3), *([("site_back", 5)] if until == 5 else [])]
    out = 2 if until == 5 else 5
    assert count_contributions(run)["bonn"]["refused"] == out
    assert f"site bonn was left out in {out} rounds: {FULL}" in run.summary["remarks"]
