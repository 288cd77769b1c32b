"""The agent's listener, as verbs talk to it: its address, its token, one GET."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sidecar.cli import common

if TYPE_CHECKING:
    from sidecar.config import Config

TIMEOUT = 30.0
_OURS = "http://localhost"
"""What requests over a unix socket name as their host."""


class AgentError(Exception):
    """The listener cannot be reached, or refused; the text says what to do next."""


@dataclass(frozen=True, slots=True)
class Address:
    """``base`` is ``http://host:port``; ``token`` is shown to nobody.

    ``socket`` is the path of the unix socket behind ``base``, ``None`` for TCP.
    """

    base: str
    token: str | None
    socket: str | None = None

    def __str__(self) -> str:
        return self.base if self.socket is None else f"unix:{self.socket}"

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token is not None else {}


def arguments(parser: argparse.ArgumentParser) -> None:
    """``--url`` and ``--token-file``."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="the sidecar's address: http://127.0.0.1:8808, unix:/run/sidecar.sock",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="the agent's token; default: $SIDECAR_TOKEN, or the configuration's own",
    )


def address(given: argparse.Namespace, config: Config) -> Address:
    """Where to go and with what token."""
    from sidecar.config.secrets import EnvFileSecrets
    from sidecar.ports.secrets import SecretError

    token: str | None = os.environ.get("SIDECAR_TOKEN")
    try:
        if given.token_file is not None:
            token = given.token_file.read_text().strip()
        elif token is None and config.token is not None:
            token = EnvFileSecrets(os.environ).read(config.token)
    except (OSError, ValueError, SecretError) as error:
        where = f"{given.token_file}: " if isinstance(error, OSError | ValueError) else ""
        raise AgentError(f"the token cannot be read: {where}{common.why(error)}") from error
    if given.url is not None:
        return _named(given.url, token)
    if config.listen is None:
        raise AgentError("this configuration has no listener; name one with --url")
    if config.listen.path is not None:
        return Address(_OURS, token, str(config.listen.path))
    return Address(f"http://{config.listen}", token)


def _named(url: str, token: str | None) -> Address:
    if url.startswith("unix:"):
        return Address(_OURS, token, url.removeprefix("unix:"))
    base = url.rstrip("/").removesuffix("/mcp")
    try:
        parts = urlsplit(base)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise AgentError(f"--url: {url!r} is no address; write it like http://127.0.0.1:8808")
    return Address(base, token)


def token_needed(where: Address, given: argparse.Namespace, config: Config) -> None:
    """Raises AgentError where the configuration says that a call without a token is refused."""
    if where.token is None and given.url is None and config.agents:
        raise AgentError(
            "this sidecar knows its agents by their tokens; name a file that holds one with "
            "--token-file, or put it into $SIDECAR_TOKEN"
        )


def get(where: Address, path: str) -> dict[str, object]:
    """One JSON object. Proxies of the environment are not used: the sidecar is right here."""
    connection = _connection(where)
    try:
        if where.socket is not None:
            connection.sock = _connected(where.socket)
        connection.request("GET", urlsplit(where.base).path + path, headers=where.headers())
        answer = connection.getresponse()
        status, raw = answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise silent(where, error) from error
    finally:
        connection.close()
    if status >= 400:
        raise AgentError(f"{where} answered {status}: {reason(raw)}")
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise AgentError(f"{where} did not answer with an object: is it a sidecar?")
    return body


def silent(where: Address, error: BaseException) -> AgentError:
    """Nobody answers there."""
    return AgentError(
        f"no sidecar answers at {where} ({common.why(error)}); start one with `sidecar run`"
    )


def _connection(where: Address) -> http.client.HTTPConnection:
    parts = urlsplit(where.base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=TIMEOUT)


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(TIMEOUT)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def reason(body: bytes) -> str:
    """The message of an error answer, or nothing that could be mistaken for one."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return "no reason given"
    error = parsed.get("error") if isinstance(parsed, dict) else None
    if isinstance(error, dict):
        return str(error.get("message", "no reason given"))
    return "no reason given"
