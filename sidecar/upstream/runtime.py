"""Servers added at run time as data: what is stored, and the server it stands for. Pure.

Nothing in a stored record can loosen anything: such a server is never trusted, its own hints
only make a tool stricter, and it names credentials without holding any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from sidecar.config import CredentialConfig, Fault, RuntimeServers, SecretRef, ServerConfig, values
from sidecar.config.nodes import Plain
from sidecar.config.runtime import Options, query_holds_secret, read_options
from sidecar.model import JsonObject
from sidecar.wire.json import BadJson, canonical, decode

PREFIX = "servers/"
"""The store's keys: the prefix and the server's name."""

MOST_BYTES = 256 << 10
"""Of one stored record."""


class NotFound(Exception):
    """No server of this name was added at run time."""

    reason = "not_found"


class Refused(Exception):
    """A server cannot be added or removed.

    ``reason`` is a word for programs: ``configured``, ``reserved``, ``name``, ``alike``,
    ``options``, ``commands``, ``credential``, ``too_many``, ``egress`` or the rule that denied it
    (``egress/private`` …). ``detail`` says what to do, ``faults`` every fault of the options.
    """

    def __init__(self, reason: str, detail: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.faults = tuple(faults)


def check_name(
    name: str, separator: str, configured: Mapping[str, str], others: Iterable[str] = ()
) -> None:
    """``configured`` maps the names of sidecar.yaml to what they are (``server``, ``harness``),
    ``others`` are those of servers that were added.

    Raises:
        Refused: the name cannot be a runtime server's.
    """
    what = configured.get(name)
    if what is not None:
        raise Refused(
            "configured", f"sidecar.yaml has a {what} of the name {name}; edit the file instead"
        )
    try:
        values.server_name(name)
    except ValueError as error:
        raise Refused("reserved" if name == values.RESERVED else "name", str(error)) from None
    if separator in name:
        raise Refused("name", f'a name has no separator ("{separator}") in it')
    folded = name.casefold()
    for other in (*configured, *others):
        # Whoever approves a call of the one is not to take it for the other's.
        if other != name and other.casefold() == folded:
            raise Refused(
                "alike",
                f"it would differ from {other}, which is there already, in upper and lower case "
                "alone; use another name",
            )


def warnings(options: Plain) -> list[str]:
    """What is allowed and yet unwise about options that passed. Quotes nothing of them."""
    url = options.get("url") if isinstance(options, dict) else None
    if isinstance(url, str) and query_holds_secret(url):
        return [
            "the query of its url looks like it holds a secret, which stands in the store as it "
            "is; where the server takes it in a header, name a credential of sidecar.yaml instead"
        ]
    return []


def server_config(
    name: str,
    given: Plain,
    credentials: Mapping[str, CredentialConfig],
    rules: RuntimeServers,
    *,
    shared: bool,
) -> ServerConfig:
    """The server that the options stand for. ``shared`` says whether other nodes use the store.

    Raises:
        Refused: the options are wrong, or ask for what is not allowed here.
    """
    options = read_options(given)
    if not isinstance(options, Options):
        told = "; ".join(f"{each.path}: {each.message}".removeprefix(": ") for each in options)
        raise Refused("options", told, options)
    if options.command:
        _check_commands(rules, shared=shared)
    headers = {header: SecretRef(literal=value) for header, value in options.headers.items()}
    if options.credential is not None:
        credential = _credential(options.credential, options.url, credentials)
        if credential.header.lower() in map(str.lower, headers):
            raise Refused(
                "credential", f"headers has {credential.header}, which the credential writes"
            )
        headers[credential.header] = credential.secret
    return ServerConfig(
        name=name,
        transport=options.transport,
        command=options.command,
        env={key: SecretRef(literal=value) for key, value in options.env.items()},
        cwd=options.cwd,
        url=options.url,
        headers=headers,
        only=options.only,
        except_=options.except_,
        trusted=False,
        gated=options.gated,
        hints="restrict",
        timeout=options.timeout,
        era=options.era,
        isolation=options.isolation,
        runtime=True,
        checked=rules.check,
    )


def _check_commands(rules: RuntimeServers, *, shared: bool) -> None:
    if not rules.commands or rules.check:
        raise Refused(
            "commands",
            "only servers with a url can be added while it runs; put the command into "
            "sidecar.yaml, or set runtime_servers: {check: false, commands: true}",
        )
    if shared:
        raise Refused(
            "commands",
            "programs cannot be added on a store that other nodes use; put the command into "
            "sidecar.yaml",
        )


def _credential(
    name: str, url: str, credentials: Mapping[str, CredentialConfig]
) -> CredentialConfig:
    credential = credentials.get(name)
    if credential is None:
        known = ", ".join(sorted(credentials)) or "none"
        raise Refused(
            "credential", f"sidecar.yaml has no credential of this name; there are: {known}"
        )
    if values.origin_of(url) not in credential.origins:
        raise Refused(
            "credential",
            f"the credential {name} may not be sent to this origin; it is for "
            + ", ".join(credential.origins),
        )
    return credential


def encode(options: Plain, by: str) -> bytes:
    """A record's value. ``by`` is whoever added it."""
    return canonical({"by": by, "options": options, "v": 1})


def decode_record(value: bytes) -> JsonObject:
    """A record's options.

    Raises:
        Refused: it is no record that this version can read.
    """
    unreadable = Refused("options", "its record in the store cannot be read by this version")
    if len(value) > MOST_BYTES:
        raise unreadable
    try:
        record = decode(value)
    except BadJson:
        raise unreadable from None
    if not isinstance(record, dict) or record.get("v") != 1:
        raise unreadable
    options = record.get("options")
    if not isinstance(options, dict):
        raise unreadable
    return cast(JsonObject, options)
