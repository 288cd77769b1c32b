"""The admin API from Python and from the command line. Synchronous, standard library only."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import quote, urlencode, urlsplit

from sidecar.model import JsonObject

EVENTS_TIMEOUT = 45.0
"""Seconds of silence, three keep-alives, after which a stream of events counts as dead."""


class AdminError(Exception):
    """The sidecar cannot be reached, or refused; the text says what to do next.

    ``reason`` is the refusal's word for programs, empty when nobody answered.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class NotFound(AdminError):
    """There is no such thing. ``reason`` is ``not_found``."""

    def __init__(self, text: str = "there is no such thing") -> None:
        super().__init__(text, "not_found")


class Refused(AdminError):
    """The sidecar will not do it. ``reason`` says which rule, the text what to do instead."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or reason, reason)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class AdminClient:
    """``address`` is ``unix:/path`` or ``http://host:port``; ``host:port`` will do, as in
    ``admin.listen``. ``token`` is for those over TCP; a line end after it is no part of it."""

    def __init__(self, address: str, *, token: str | None = None, timeout: float = 30.0) -> None:
        """Raises ValueError, which quotes nothing, when the address or the token is none."""
        self._host, self._port = _place(address)
        self._address = address
        self._token = None if token is None else _token(token)
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

    def labels(self) -> list[JsonObject]:
        """Trust labels: ``{principal, labels: [{label, at, until, results, session}]}``."""
        return self._list("labels", "sessions")

    def clear_labels(self, principal: str) -> None:
        """Forget a principal's labels. Raises NotFound when there are none."""
        self._send("DELETE", f"/v1/labels/{quote(principal, safe='')}")

    def pins(self) -> list[JsonObject]:
        """Every tool: ``{name, server, upstream_name, digest, pinned, at, changed}``."""
        return self._list("pins")

    def pin(self, names: Sequence[str] | None) -> list[str]:
        """Accept the definitions of now, of these tools or (``None``) of all; their names.

        Raises:
            NotFound: there is no such tool, and nothing was pinned.
        """
        body: JsonObject = {"all": True} if names is None else {"names": list(names)}
        pinned = self._request("POST", "/v1/pins", body).get("pinned")
        return [str(name) for name in pinned] if isinstance(pinned, list) else []

    def policy(self) -> JsonObject:
        """What is in force: ``{revision, engine, default, shipped, paths, loaded_at, …}``."""
        return self._request("GET", "/v1/policy")

    def evaluate(self, given: Mapping[str, object]) -> JsonObject:
        """What the policies in force decide upon an input. Raises Refused for what is none."""
        return self._request("POST", "/v1/policy/eval", given)

    def add(self, name: str, options: Mapping[str, object] | None = None, **more: object) -> bool:
        """Add a server, or replace one that was added; whether it is new.

        ``options`` and ``more`` are one mapping of what a server is: ``url``, ``credential`` …

        Raises:
            Refused: ``configured``, ``options``, ``credential``, an egress rule …
            AdminError: nobody answers, or the store is lost (``store_unavailable``).
        """
        return self.put(name, {**(options or {}), **more})[0]

    def put(self, name: str, options: Mapping[str, object]) -> tuple[bool, list[str]]:
        """As ``add``; whether it is new, and what is unwise about its options."""
        status, found = self._send("PUT", _server(name), options)
        told = (found or {}).get("warnings")
        return status == 201, [str(each) for each in told] if isinstance(told, list) else []

    def remove(self, name: str) -> None:
        """Remove a server that was added.

        Raises:
            NotFound: none of this name was added.
            Refused: it is a configured one.
            AdminError: as for ``add``.
        """
        self._send("DELETE", _server(name))

    def reconcile(self) -> JsonObject:
        """Compare with the store now: ``{added, removed, changed, servers}``."""
        return self._request("POST", "/v1/reconcile")

    def calls(self, state: str | None = None) -> list[JsonObject]:
        """Parked calls, newest first and without their arguments; ``state`` as the route has it."""
        found: list[JsonObject] = []
        after: str | None = None
        while True:
            asked = {"state": state, "after": after, "limit": "500"}
            given = urlencode({key: value for key, value in asked.items() if value is not None})
            body = self._request("GET", f"/v1/calls?{given}")
            found += cast("list[JsonObject]", body.get("calls", []))
            after = cast("str | None", body.get("next"))
            if after is None:
                return found

    def call(self, id: str) -> JsonObject:
        """One parked call, with its arguments. Raises NotFound."""
        return self._request("GET", f"/v1/calls/{quote(id, safe='')}")

    def answer(self, id: str, *, approve: bool, why: str = "") -> JsonObject:
        """Approve or deny a parked call; the call as it stands now.

        Raises:
            NotFound: there is no such call.
            Refused: it is answered already, or over (``conflict``).
        """
        what = "approve" if approve else "deny"
        return self._request("POST", f"/v1/calls/{quote(id, safe='')}/{what}", {"why": why})

    def works(self) -> list[JsonObject]:
        """Every work: ``{harness, checkout, principal, work, branch, path, state, …}``."""
        return self._list("works")

    def sweep(self, *, dry_run: bool = False) -> JsonObject:
        """Remove what has landed: ``{removed, kept: [{path, reason, detail}], dry_run}``."""
        return self._request("POST", "/v1/sweep", {"dry_run": dry_run})

    def events(self) -> Iterator[tuple[str, JsonObject]]:
        """What happens, from now on until the sidecar ends: an event's name and its body.

        The first is named ``open``: from then on nothing is missed, so what is there already is
        best asked for then. After one named ``lost`` it has to be asked for again.

        Raises:
            AdminError: nobody answers, or more is silent than its keep-alives allow.
        """
        connection = self._connection()
        connection.timeout = EVENTS_TIMEOUT
        headers = {"Authorization": f"Bearer {self._token}"} if self._token is not None else {}
        try:
            connection.request("GET", "/v1/events", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise self._failure(response.status, _object(response.read(1 << 16)))
            yield "open", {}
            name = ""
            while line := response.readline(1 << 20):
                field, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise AdminError(f"no sidecar answers at {self._address} ({_why(error)})") from error
        finally:
            connection.close()

    def _list(self, noun: str, at: str = "") -> list[JsonObject]:
        body = self._request("GET", f"/v1/{at or noun}")
        found = body.get(noun)
        if not isinstance(found, list):
            raise AdminError(f"{self._address} answered without {noun!r}: is it a sidecar?")
        return cast("list[JsonObject]", found)

    def _request(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> JsonObject:
        """Send a request whose answer is an object. Raises AdminError and its kinds."""
        found = self._send(method, path, body)[1]
        if found is None:
            raise AdminError(f"{self._address} did not answer with an object: is it a sidecar?")
        return found

    def _send(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> tuple[int, JsonObject | None]:
        """The status and the body of an answer that is no error."""
        connection = self._connection()
        headers: dict[str, str] = {}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        sent: bytes | None = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            sent = json.dumps(body).encode()
        try:
            connection.request(method, path, body=sent, headers=headers)
            response = connection.getresponse()
            raw = response.read(64 << 20)
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(
                f"no sidecar answers at {self._address} ({_why(error)}); start one with "
                "`sidecar run`, or name its configuration with --config"
            ) from error
        finally:
            connection.close()
        if response.status == 204:
            return 204, None
        try:
            found = json.loads(raw)
        except ValueError as error:
            raise AdminError(f"{self._address} did not answer in JSON: is it a sidecar?") from error
        if not isinstance(found, dict):
            raise AdminError(f"{self._address} did not answer with an object: is it a sidecar?")
        if response.status >= 400:
            raise self._failure(response.status, found)
        return response.status, found

    def _failure(self, status: int, problem: JsonObject) -> AdminError:
        """What a problem object means."""
        text = str(problem.get("detail") or "")
        reason = str(problem.get("reason") or "")
        if not text:
            text = f"{self._address} answered HTTP {status}: is it the admin listener?"
        if status == 404 and reason == "not_found":
            return NotFound(text)
        if status in (409, 422):
            return Refused(reason, text)
        return AdminError(text, reason)

    def _connection(self) -> http.client.HTTPConnection:
        if self._port is None:
            return _UnixConnection(Path(self._host), self._timeout)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)


def _place(address: str) -> tuple[str, int | None]:
    """Host and port, or a socket's path and ``None``. Nothing of what is left out could be kept:
    a token for https:// would go out in plain text. Raises ValueError."""
    path = address.removeprefix("unix:")
    if path and path != address:
        return path, None
    host, port = "", None
    try:
        url = urlsplit(address if "://" in address else f"http://{address}")
        more = "@" in url.netloc or url.path.strip("/") or url.query
        if path and url.scheme == "http" and not more:
            host, port = url.hostname or "", url.port
    except ValueError:
        host = ""
    if not host:
        raise ValueError("the address of an admin listener is unix:/path or http://host:port")
    return host, port or 80


def _why(error: Exception) -> str:
    """Without the number of an error of the system."""
    return str((isinstance(error, OSError) and error.strerror) or error)


def _object(raw: bytes) -> JsonObject:
    """A problem's object; an empty one where it is none."""
    try:
        found = json.loads(raw)
    except ValueError:
        return {}
    return cast("JsonObject", found) if isinstance(found, dict) else {}


def _token(text: str) -> str:
    """As it stands in its file. Raises ValueError, in place of http.client's, which quotes it."""
    token = text.rstrip("\r\n")
    if not token.isascii() or any(character <= " " or character == "\x7f" for character in token):
        raise ValueError("a token is one line of ASCII without white space; this one is not")
    return token


def _server(name: str) -> str:
    if not name:
        # Another path, whose answer would be about that.
        raise Refused("name", "a server has a name; this one is empty")
    return f"/v1/servers/{quote(name, safe='')}"
