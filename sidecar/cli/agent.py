"""The agent's listener, as verbs talk to it: its address, its token, one GET."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.config import Config

TIMEOUT = 30.0


class AgentError(Exception):
    """The listener cannot be reached, or refused; the text says what to do next."""


@dataclass(frozen=True, slots=True)
class Address:
    """``base`` is ``http://host:port``; ``token`` is shown to nobody."""

    base: str
    token: str | None

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token is not None else {}


def arguments(parser: argparse.ArgumentParser) -> None:
    """``--url`` and ``--token-file``."""
    parser.add_argument(
        "--url", metavar="URL", help="the sidecar's address, such as http://127.0.0.1:8808"
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
    except (OSError, SecretError) as error:
        raise AgentError(f"the token cannot be read: {error}") from error
    if given.url is not None:
        return Address(given.url.rstrip("/").removesuffix("/mcp"), token)
    if config.listen is None:
        raise AgentError("this configuration has no listener; name one with --url")
    return Address(f"http://{config.listen}", token)


def get(where: Address, path: str) -> dict[str, object]:
    """One JSON object. Proxies of the environment are not used: the sidecar is right here."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(where.base + path, headers=where.headers())
    try:
        with opener.open(request, timeout=TIMEOUT) as response:
            body = json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise AgentError(f"{where.base} answered {error.code}: {reason(error.read())}") from error
    except (OSError, ValueError) as error:
        raise AgentError(
            f"no sidecar answers at {where.base} ({error}); start one with `sidecar run`"
        ) from error
    if not isinstance(body, dict):
        raise AgentError(f"{where.base} did not answer with an object: is it a sidecar?")
    return body


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
