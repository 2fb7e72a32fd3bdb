"""Messages are answered inside the SuperNode: Flower's own loop, state and messages, with an app in this process."""

from __future__ import annotations

import inspect
import threading
from types import SimpleNamespace

import pytest

from fedstrata.deploy import objects_under_way
from fedstrata.deploy.heartbeats import beat_on
from fedstrata.deploy.served import ANNOUNCED
from fedstrata.deploy.server import run_process
from fedstrata.deploy.site import answering
from fedstrata.remote.site.private_socket import WAKE, Door


@pytest.fixture
def node():
    """Give the names of Flower's module that are used and replaced, so that the module stays as it is."""
    module = pytest.importorskip("flwr.supernode.start_client_internal")
    return SimpleNamespace(**{name: getattr(module, name) for name in dir(module) if not name.startswith("__")})


def test_an_app_answers_every_message_once_and_the_reply_is_sent(node, monkeypatch):
    from flwr.app import ConfigRecord, Message  # noqa: PLC0415
    from flwr.supercore.object_store import ObjectStoreFactory  # noqa: PLC0415
    from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415
    from flwr.supernode.nodestate import NodeStateFactory  # noqa: PLC0415

    factory = NodeStateFactory(ObjectStoreFactory())
    state, store = factory.state(), factory.objectstore_factory.store()
    state.set_node_id(7)
    seen, sent = [], []

    def app(message, context):
        seen.append((message.content["said"]["word"], context.node_config["site"], context.node_id))
        return Message(node.RecordDict({"said": ConfigRecord({"word": "back"})}), reply_to=message)

    setattr(node, answering.PUSH, lambda **ways: sent.extend(state.get_messages_legacy(is_reply=True)))
    answering.answer_here(node, app)
    for name, number in (("_run_id", 5), ("_node_id", 1), ("_task_id", 9)):  # of the server's side
        monkeypatch.setattr(TaskIdentity, name, number)
    asked = Message(node.RecordDict({"said": ConfigRecord({"word": "hello"})}), 7, "train")
    monkeypatch.undo()
    state.store_run(SimpleNamespace(run_id=5, series_id=3))
    context = node.Context(5, 7, {"site": "a"}, node.RecordDict(), {}, series_id=3)
    state.set_run_series_context(3, context)
    node._insert_message(asked, state, store)
    for _ in range(2):
        getattr(node, answering.PUSH)(state=state, object_store=store, send=None, push_object=None)
    assert seen == [("hello", "a", 7)]
    (reply,) = sent
    assert reply.metadata.reply_to_message_id == asked.metadata.message_id
    assert reply.content["said"]["word"] == "back"


def test_a_site_that_hears_of_a_run_is_woken_and_looks_again_at_once(tmp_path_factory, monkeypatch):
    """With Flower's own way around a request, as it is called by the module that holds the connection."""
    connection = pytest.importorskip("flwr.supernode.fleet_http_connection")
    keys = connection.generate_key_pairs()
    module = SimpleNamespace(NodeAuthHttpInterceptor=connection.NodeAuthHttpInterceptor)
    announced = answering.hear(module)
    around = module.NodeAuthHttpInterceptor(*keys)
    headers = {}

    def pull(node_config):
        request = SimpleNamespace(request=SimpleNamespace(headers={}))
        around.intercept(request, lambda _: SimpleNamespace(headers=headers))

    slept, asked, place = [], [], tmp_path_factory.mktemp("s") / "d" / "s"
    monkeypatch.setattr(answering.time, "sleep", slept.append)
    node = SimpleNamespace(**{answering.PULL: pull})
    answering.look_often(node, announced)
    told = {"socket": str(place), "site": "a"}

    def look(answer):
        headers.clear()
        headers.update(answer)
        getattr(node, answering.PULL)(node_config=told)
        node.time.sleep(3)

    look({ANNOUNCED: "1"})  # a site that has gone is no error
    with Door(lambda request: asked.append(request) or b"", place):
        look({})
        look({ANNOUNCED: "1"})
        look({})
    assert asked == [WAKE]
    assert slept == [answering.AT_ONCE, 3, answering.AT_ONCE, 3]


@pytest.mark.parametrize("name", ["flwr.supernode.fleet_http_connection", run_process.RUNNER], ids=["site", "run"])
def test_a_heartbeat_that_is_refused_is_not_the_last_one(capsys, name):
    module = SimpleNamespace(HeartbeatSender=pytest.importorskip(name).HeartbeatSender)
    beat_on(module)
    answers = [True, RuntimeError("500: the disk is full"), RuntimeError("500 again"), False, True]

    def beat():
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    sender = module.HeartbeatSender(beat)
    assert [sender.heartbeat_fn() for _ in range(5)] == [True, False, False, False, True]  # False: again soon
    assert capsys.readouterr().out == "a heartbeat was refused, and is tried again: 500: the disk is full\n"


def test_objects_that_are_under_way_are_asked_for_again_soon(monkeypatch):
    objects = pytest.importorskip("flwr.supercore.inflatable.inflatable_utils")
    monkeypatch.setattr(objects.pull_objects, "__kwdefaults__", dict(objects.pull_objects.__kwdefaults__))
    objects_under_way.ask_again_soon()
    assert inspect.signature(objects.pull_objects).parameters["initial_backoff"].default == objects_under_way.PAUSE
    content = iter([None, None, b"x"])

    def pull(name):
        if (found := next(content)) is None:
            raise objects.ObjectUnavailableError(name)
        return found

    assert objects.pull_objects(["o"], pull) == {"o": b"x"}


def test_no_port_is_opened_and_another_version_of_flower_is_noticed():
    command = SimpleNamespace(_start_supernode_http_api=lambda *_: pytest.fail("a port was opened"))
    answering.without_port(command)
    server, thread = command._start_supernode_http_api(None, None)
    server.should_exit = True
    assert not thread.is_alive()
    wraps = (
        answering.without_port,
        answering.hear,
        beat_on,
        lambda module: answering.look_often(module, threading.Event()),
        lambda module: answering.answer_here(module, None),
    )
    for wrap in wraps:
        with pytest.raises(AttributeError):
            wrap(SimpleNamespace())
