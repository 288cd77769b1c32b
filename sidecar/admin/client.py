"""The admin API from Python and from the command line. Synchronous, standard library only."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from sidecar.model import JsonObject


class AdminError(Exception):
    """The sidecar cannot be reached, or refused; the text says what to do next."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class AdminClient:
    """``address`` is ``unix:/path`` or ``http://host:port``; ``token`` is for the latter."""

    def __init__(self, address: str, *, token: str | None = None, timeout: float = 10.0) -> None:
        self._address = address
        self._token = token
        self._timeout = timeout

    def servers(self) -> list[JsonObject]:
        """Every server: ``{name, source, transport, state, era, tools, error, retry_in}``."""
        return self._list("servers")

    def tools(self) -> list[JsonObject]:
        """Every tool of the catalog, with its annotations, hints and digest."""
        return self._list("tools")

    def sessions(self) -> list[JsonObject]:
        """Every downstream session."""
        return self._list("sessions")

    def _list(self, noun: str) -> list[JsonObject]:
        body = self._request("GET", f"/v1/{noun}")
        found = body.get(noun)
        if not isinstance(found, list):
            raise AdminError(f"{self._address} answered without {noun!r}: is it a sidecar?")
        return cast("list[JsonObject]", found)

    def _request(self, method: str, path: str) -> JsonObject:
        connection = self._connection()
        headers: Mapping[str, str] = (
            {"Authorization": f"Bearer {self._token}"} if self._token is not None else {}
        )
        try:
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            raw = response.read(64 << 20)
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(
                f"no sidecar answers at {self._address} ({error}); start one with `sidecar run`, "
                "or name its configuration with --config"
            ) from error
        finally:
            connection.close()
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise AdminError(f"{self._address} did not answer in JSON: is it a sidecar?") from error
        if not isinstance(body, dict):
            raise AdminError(f"{self._address} did not answer with an object: is it a sidecar?")
        if response.status >= 400:
            raise AdminError(str(body.get("detail") or f"HTTP {response.status}"))
        return body

    def _connection(self) -> http.client.HTTPConnection:
        if self._address.startswith("unix:"):
            return _UnixConnection(Path(self._address.removeprefix("unix:")), self._timeout)
        url = urlsplit(self._address)
        return http.client.HTTPConnection(
            url.hostname or "127.0.0.1", url.port or 80, timeout=self._timeout
        )
