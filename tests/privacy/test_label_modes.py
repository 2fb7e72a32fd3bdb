"""Labels become placeholders: all modes agree, also where clients drop out or ask for what cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_parties import HELD, REFUSED, PrfWorld, check, mask

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.privacy.frames import SERVER
from fedstrata.privacy.labels import ckks_paper, prf
from fedstrata.privacy.labels.masking import MODES, Transcript
from fedstrata.privacy.labels.parties import WORD
from fedstrata.privacy.labels.prf import PrfClient


def structure(known, held):
    """Return what is known, without the order of the placeholders."""
    columns = [(tuple(known.holds[:, p].tolist()), int(known.totals[p])) for p in range(known.placeholders)]
    return sorted(columns), known.clients, [sorted(map(repr, own)) for own in known.own]


HELDS = st.lists(
    st.dictionaries(
        st.one_of(st.integers(-2, 9), st.sampled_from("ab"), st.booleans()), st.integers(1, 2**40), max_size=5
    ),
    min_size=3,
    max_size=6,
)


@settings(max_examples=25, deadline=None)
@given(HELDS, st.integers(0, 2**31))
def test_prf_and_none_give_the_same(held, seed):
    found = [mask(mode, held, seed) for mode in ("prf", "none")]
    for known in found:
        check(known, held)
    assert structure(found[0], held) == structure(found[1], held)


@pytest.mark.filterwarnings("ignore::fedstrata.privacy.labels.ckks_paper.PrivacyWarning")
@pytest.mark.parametrize(
    "held",
    [
        HELD,
        [{3: 2, 1: 9}, {1: 4, -5: 1}, {}, {3: 1}],
        [{7: 1, "7": 2}, {7.0: 3, b"7": 4}, {True: 5, 2**70: 6}, {1: 7}],
        [{}, {}, {}],
    ],
)
def test_ckks_gives_the_same_too(held):
    found = [mask(mode, held) for mode in MODES]
    for known in found:
        check(known, held)
        assert structure(known, held) == structure(found[0], held)


def test_the_server_draws_the_order_of_the_placeholders():
    held = [dict.fromkeys(range(6), 1)] * 3
    orders = {tuple(mask("none", held, seed).own[0].values()) for seed in range(20)}
    assert len(orders) > 10


@pytest.mark.parametrize("mode", ["prf", "none"])
def test_a_seed_gives_the_same_messages_again(mode):
    first, second, other = Transcript(), Transcript(), Transcript()
    mask(mode, HELD, 1, transcript=first)
    mask(mode, HELD, 1, transcript=second)
    mask(mode, HELD, 2, transcript=other)
    assert first == second != other


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore::fedstrata.privacy.labels.ckks_paper.PrivacyWarning")
def test_bytes_are_those_of_the_messages(mode):
    transcript = Transcript()
    known = mask(mode, HELD[:3], transcript=transcript)
    for client in range(3):
        up = sum(len(m.data) for m in transcript.messages if m.sender == client)
        down = sum(len(m.data) for m in transcript.messages if m.receiver == client)
        assert (known.bytes_up[client], known.bytes_down[client]) == (up, down)
        assert up > 0 < down


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore::fedstrata.privacy.labels.ckks_paper.PrivacyWarning")
def test_clients_tell_their_distributions_where_asked(mode):
    held = HELD[:3]
    known = mask(mode, held, distributions=True)
    for client, labels in enumerate(held):
        told = dict(enumerate(known.counts[client].tolist()))
        assert {label: told[at] for label, at in known.own[client].items()} == labels
    assert (known.counts.sum(0) == known.totals).all()
    assert mask("none", held).counts is None


def test_a_client_tells_its_distribution_only_if_it_was_told_to():
    world = PrfWorld(HELD, open_counts=False)
    with REFUSED(match="open counts"):
        world.talk(world.server(distributions=True))


@pytest.mark.parametrize("step", prf.STEPS)
def test_a_client_that_drops_out_is_left_out(step):
    held, notes = [*HELD, *HELD], []
    known = mask(
        "prf", held, absent={3: step}, distributions=True, note=lambda kind, **said: notes.append((kind, said))
    )
    check(known, held)
    [(kind, told)] = notes
    assert (kind, told["step"], told["missing"]) == ("label_masking_repeated", step, [3])
    assert told["left_out"] == list(known.left_out)
    assert told["clients"] == len(known.clients)
    assert 3 in known.left_out
    assert len(known.left_out) == (
        3 if step == "counts" else 1
    )  # two more must go, or the difference would be client 3
    assert (known.counts[list(known.left_out)] == 0).all()


@pytest.mark.parametrize("step", ["labels", "placeholders", "distribution"])
def test_drop_outs_without_masking(step):
    known = mask("none", HELD, absent={0: step}, distributions=True)
    check(known, HELD)
    assert known.left_out == (0,)


@pytest.mark.filterwarnings("ignore::fedstrata.privacy.labels.ckks_paper.PrivacyWarning")
@pytest.mark.parametrize(("classes", "asked"), [(None, {1, 2, 3, 4}), (5, {1, 2, 3, 4}), (4, {1, 2})])
def test_the_printed_protocol_stops_looking_for_labels_once_it_has_all(classes, asked):
    """Three clients hold all four labels between them: with that known, nobody after them is asked (section V-E)."""
    pytest.importorskip("tenseal")
    transcript = Transcript()
    check(mask("ckks-paper", HELD, transcript=transcript, classes=classes), HELD)
    assert {m.receiver for m in transcript.messages if m.step == "unique" and m.sender == SERVER} == asked


@pytest.mark.filterwarnings("ignore::fedstrata.privacy.labels.ckks_paper.PrivacyWarning")
@pytest.mark.parametrize("step", ckks_paper.STEPS)
def test_drop_outs_in_the_printed_protocol(step):
    held = [{1: 2}, {1: 3, 2: 1}, {2: 1}, {1: 1}]
    gone = 0 if step == "sums" else 1  # one client only is asked for sums
    known = mask("ckks-paper", held, absent={gone: step}, distributions=True)
    check(known, held)
    assert known.left_out == (gone,)


def test_several_drop_outs_one_after_the_other():
    held, notes = [*HELD, *HELD], []
    absent = {1: "tokens", 5: "confirm", 2: "agree", 8: "key"}
    known = mask("prf", held, absent=absent, note=lambda _, **said: notes.append(said["step"]))
    check(known, held)
    assert known.left_out == (1, 2, 5, 8)
    assert notes == ["key", "confirm", "tokens", "agree"]


@pytest.mark.parametrize("step", ["key", "agree"])
def test_fewer_than_three_clients_never_go_on(step):
    with pytest.raises(FedstrataError, match="3 are needed"):
        mask("prf", HELD[:4], absent={0: step, 2: step})
    check(mask("prf", HELD[:4], absent={0: step}), HELD[:4])


def test_a_drop_out_while_counts_are_sent_needs_enough_clients():
    check(mask("prf", [*HELD, {}], absent={0: "counts"}), [*HELD, {}])
    with pytest.raises(FedstrataError, match="must stay away"):
        mask("prf", HELD, absent={0: "counts"})


def test_a_reply_that_is_refused_counts_as_missing(monkeypatch):
    answer = PrfClient.answer
    monkeypatch.setattr(PrfClient, "answer", lambda self, *a: answer(self, *a)[self.me == 2 :])
    notes = []
    known = mask("prf", HELD, note=lambda _, **said: notes.append(said["refused"]))
    assert known.left_out == (2,)
    assert list(notes[0]) == [2]


@pytest.mark.parametrize("counted", [2**63 // 3, 2**63, -1, 0, 1.5, True, "3"])
@pytest.mark.parametrize("mode", ["prf", "none"])
def test_counts_that_could_wrap_or_are_none_are_refused(mode, counted):
    with pytest.raises(RequestError, match="allowed"):
        mask(mode, [{1: counted}, {1: 1}, {1: 1}])


@pytest.mark.parametrize("mode", ["prf", "none"])
def test_the_largest_counts_add_up(mode):
    most = 2**63 // 3 - 1
    assert mask(mode, [{1: most}] * 3).totals.tolist() == [3 * most]
    assert mask(mode, [{np.int64(1): np.int64(2)}] * 3).totals.tolist() == [6]


def test_a_total_that_cannot_be_one_is_refused():
    world = PrfWorld(HELD)
    server = world.server()

    def exaggerate(step, i, reply):
        if step != "counts" or i != 0:
            return reply
        words = np.frombuffer(world.told(server, step, i, reply)[0], WORD) + (1 << 63)
        return world.tell(server, step, i, words.astype(WORD).tobytes())

    with REFUSED(match="too large"):
        world.talk(server, reword=exaggerate)


@pytest.mark.parametrize(("mode", "clients"), [("prf", 2), ("prf", prf.MOST + 1), ("ckks-paper", 2), ("none", 0)])
def test_too_few_and_too_many_clients(mode, clients):
    with pytest.raises(RequestError, match=rf'privacy.labels = "{mode}" with {clients} clients; allowed: at'):
        mask(mode, [{1: 1}] * clients)


def test_wrong_requests():
    with pytest.raises(RequestError, match="did you mean"):
        mask("prv", HELD)
    with pytest.raises(RequestError, match="allowed: clients 0 to 4"):
        mask("prf", HELD, absent={7: "key"})
    with pytest.raises(RequestError, match="steps"):
        mask("prf", HELD, absent={1: "labels"})
    with pytest.raises(RequestError, match="allowed: bool"):
        mask("prf", [{None: 1}] * 3)
