"""The socket of a site's process: requests go in, replies come out, and nothing of the data with an error."""

from __future__ import annotations

import errno
import random
import socket
import threading

import pytest

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.remote.site.private_socket import Door, ask
from fedstrata.remote.transport import Failure, attempt

MB = 1_000_000
PATIENCE = 300.0  # seconds for what will come, on however busy a machine


def test_requests_go_in_and_replies_come_out(path):
    data = random.Random(0).randbytes(25 * MB)
    with Door(lambda request: request[::-1], path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert ask(path, b"abc") == b"cba"
        assert [ask(path, b"") for _ in range(200)] == [b""] * 200
        assert ask(path, data, PATIENCE) == data[::-1]
    with pytest.raises(FedstrataError, match="the site's process is not there"):
        ask(path, b"abc")


def test_several_requests_are_under_way_at_once(path):
    meet = threading.Barrier(3)

    def together(request):
        meet.wait(PATIENCE)
        return request

    replies = {}
    with Door(together, path):
        threads = [
            threading.Thread(target=lambda i=i: replies.update({i: ask(path, b"%d" % i, PATIENCE)})) for i in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert replies == {i: b"%d" % i for i in range(3)}


def test_an_error_comes_back_in_words_that_quote_no_data(path, caplog):
    def fails(request):
        if request == b"ours":
            raise RequestError("site = 7 is not valid")
        raise ValueError("patient 4711")

    with Door(fails, path):
        with pytest.raises(FedstrataError, match=r"^site = 7 is not valid$"):
            ask(path, b"ours")
        with pytest.raises(FedstrataError, match=r"^ValueError \(the site's own log says where\)$"):
            ask(path, b"other")
    assert "patient 4711" in caplog.text


def test_a_process_that_is_slow_or_dies_is_not_waited_for(path):
    over = threading.Event()
    with Door(lambda request: over.wait(PATIENCE) and request, path):
        with pytest.raises(FedstrataError, match="within 0"):
            ask(path, b"x", 0.2)
        over.set()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    threading.Thread(target=lambda: listening.accept()[0].close()).start()  # noqa: PLW0108 - it accepts when it runs
    with pytest.raises(FedstrataError, match="ended before it answered"):
        ask(path, b"x" * MB, PATIENCE)
    listening.close()


def test_the_door_is_private_and_has_one_owner(path, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(RequestError, match="mode 700"):
        Door(bytes, tmp_path / "open" / "s")
    with pytest.raises(RequestError, match="too long"):
        Door(bytes, path.parent / ("x" * 100))
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    with Door(bytes, path), pytest.raises(RequestError, match="another process already serves"):
        Door(bytes, path)
    path.write_text("mine")
    with pytest.raises(RequestError, match="is a file already"):
        Door(bytes, path)


def test_a_full_disk_is_one_line_at_the_site_and_words_for_the_server(caplog):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device", "/secret/path")

    assert attempt(full, b"") == Failure("its disk is full")
    (record,) = caplog.records
    assert (record.exc_info, "No space left on device" in record.message) == (None, True)
