"""A connection that is kept between two requests: a handshake of TLS costs more than all else of a small one."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from pathlib import Path

from fedstrata.deploy.state import address

SECONDS = 5.0  # until a server that is silent gives no answer


class KeptConnection:
    """Asks one server; where the server closed the connection meanwhile, on a new one."""

    def __init__(self, server: str, authority: Path | None):
        self._server, self._authority = server, authority
        self._open: HTTPConnection | None = None
        self.certificate_end: datetime | None = None  # of the server's, as the last connection showed it

    def get(self, path: str, headers: Mapping[str, str]) -> tuple[int, HTTPMessage]:
        """Ask for a path; give status and headers, or OSError where there is no answer."""
        if self._open is not None:
            try:
                return self._asked(self._open, path, headers)
            except (OSError, HTTPException):
                self.close()
        self._open = self._new()
        try:
            return self._asked(self._open, path, headers)
        except HTTPException as error:
            self.close()
            raise OSError(f"no answer as HTTP has it: {error}") from None
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """End it; the next request opens another."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _new(self) -> HTTPConnection:
        host, port = address(self._server)
        if self._authority is None:
            return HTTPConnection(host, port, timeout=SECONDS)
        trust = ssl.create_default_context(cafile=str(self._authority))
        connection = HTTPSConnection(host, port, timeout=SECONDS, context=trust)
        connection.connect()
        shown = connection.sock.getpeercert() or {}
        self.certificate_end = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
        return connection

    @staticmethod
    def _asked(connection: HTTPConnection, path: str, headers: Mapping[str, str]) -> tuple[int, HTTPMessage]:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers
