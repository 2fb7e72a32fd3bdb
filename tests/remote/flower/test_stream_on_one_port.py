"""Streams that come in at the server's own port, and are passed on to a socket that only its user reaches."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr")
pytest.importorskip("grpc")

from streams import ECHO, PATIENCE, everybody, streaming

from fedstrata.core.errors import RequestError
from fedstrata.deploy import state
from fedstrata.deploy.server.one_port import OnePort, listen


@contextmanager
def one_port(socket):
    """Pass streams on to a socket, in a thread; give the port."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    listener = listen("127.0.0.1", 0, 10)

    async def serve():
        door = OnePort(listener, asyncio.Protocol, None, str(socket))
        ready.set()
        await asyncio.get_running_loop().run_in_executor(None, over.wait)
        door.close()
        await door.wait_closed()

    over = threading.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        ready.wait()
        yield listener.getsockname()[1]
    finally:
        over.set()
        thread.join()
        loop.close()


def test_an_exchange_passes_the_server_s_port_also_where_the_folder_was_cleared_away():
    with state.for_sockets("test") as sockets, one_port(sockets / "stream") as port:
        assert sockets.stat().st_mode & 0o777 == 0o700
        sockets.rmdir()  # as whoever cleans temporary files up may do to an empty one
        with streaming(ECHO, f"127.0.0.1:{port}", listen=f"unix:{sockets / 'stream'}") as (opened, _):
            for data in (b"1", os.urandom(3_000_000)):
                opened.longest = 10_000_000
                assert opened.exchange(everybody(data), PATIENCE) == everybody(data)
    assert not sockets.exists()


def test_a_socket_where_others_can_enter_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    there = f"unix:{tmp_path}/open/s"
    with (
        pytest.raises(RequestError, match="can be entered by others"),
        streaming(ECHO, listen=there),
    ):
        pass


def test_a_folder_for_sockets_has_a_short_path(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(RequestError, match="set TMPDIR"), state.for_sockets("test"):
        pass
    assert list(deep.iterdir()) == []
