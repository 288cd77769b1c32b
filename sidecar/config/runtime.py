"""Keys of ``credentials.*`` and ``runtime_servers``, and the options of a server that is added
while the sidecar runs: data alone, read by the same shapes as the file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast
from urllib.parse import unquote, urlsplit

from sidecar.config import nodes, values
from sidecar.config.faults import Fault, Faults
from sidecar.config.record import Field, Got, Record, every
from sidecar.config.servers import GLOBS, LONGEST_TIMEOUT
from sidecar.config.shapes import (
    At,
    Bad,
    Choice,
    Context,
    FilePath,
    Flag,
    ListOf,
    MapOf,
    Schema,
    Secret,
    Shape,
    Text,
    Whole,
    duration,
    plain_text,
    quiet_text,
)
from sidecar.config.types import CredentialConfig, RuntimeServers, SecretRef

LONGEST_VALUE = 8192
"""Characters of a header's or variable's value of a server added at run time."""
MOST_ENTRIES = 64
"""Headers, variables, arguments or patterns of one."""


class Credential:
    """Fields of ``credentials.*``."""

    FROM_FILE = Field("from_file", FilePath(), None, "A file that holds the secret.")
    FROM_ENV = Field(
        "from_env",
        plain_text("a variable's name", 256),
        None,
        "The environment variable that holds it.",
    )
    TEMPLATE = Field(
        "template",
        quiet_text("text"),
        "Bearer {}",
        "Text around it; {} is where the secret goes.",
    )
    HEADER = Field(
        "header",
        Text("a header's name", values.header, {"type": "string", "pattern": values.HEADER}),
        "authorization",
        "The header that carries it.",
    )
    ORIGINS = Field(
        "origins",
        ListOf(Text("an origin", values.origin, {"type": "string"}), what="origins", least=1),
        (),
        "Where it may be sent: https://host or https://host:port; nowhere else.",
        required=True,
    )


def _credential(got: Got) -> CredentialConfig:
    ref = SecretRef(got[Credential.FROM_ENV], got[Credential.FROM_FILE], got[Credential.TEMPLATE])
    if got.has(Credential.FROM_ENV) == got.has(Credential.FROM_FILE):
        got.fault(None, "needs from_file or from_env, and only one of them")
    elif got[Credential.TEMPLATE].count("{}") != 1:
        got.fault(Credential.TEMPLATE, "needs {} once, where the secret goes")
    elif got.good(Credential.FROM_ENV) or got.good(Credential.FROM_FILE):
        Secret(values.header_value).verify(ref, got.node, got.at)
    return CredentialConfig(got.at.key, ref, got[Credential.ORIGINS], got[Credential.HEADER])


CREDENTIAL = Record(
    "a credential's mapping",
    every(Credential),
    _credential,
    hints={
        "value": "write from_file or from_env",
        "token": "write from_file or from_env",
        "origin": "write origins: [https://host]",
        "url": "write origins: [https://host]",
    },
    rules={"oneOf": [{"required": ["from_file"]}, {"required": ["from_env"]}]},
)


class Runtime:
    """Fields of ``runtime_servers``."""

    CHECK = Field(
        "check",
        Flag(),
        RuntimeServers().check,
        "true: HTTP servers alone, after the egress check. false: whatever is added is dialled.",
    )
    COMMANDS = Field(
        "commands",
        Flag(),
        RuntimeServers().commands,
        "true: programs may be added too; needs check: false and a store of this machine's own.",
    )
    MOST = Field("most", Whole(0, 100_000), RuntimeServers().most, "How many there may be.")


def _runtime(got: Got) -> RuntimeServers:
    if got[Runtime.COMMANDS] and got[Runtime.CHECK]:
        got.fault(Runtime.COMMANDS, "needs check: false beside it: a program cannot be checked")
    return RuntimeServers(got[Runtime.CHECK], got[Runtime.COMMANDS], got[Runtime.MOST])


RUNTIME = Record("a mapping", every(Runtime), _runtime)


# ------------------------------------------------------- options of a server added at run time


class _Literal(Shape[str]):
    """Text that stands there itself; a reference to a secret is none."""

    def __init__(self, text: Text[str]) -> None:
        self._text = text

    def read(self, node: nodes.Node, at: At) -> str | Bad:
        if isinstance(node, nodes.Mapping):
            return at.fault(
                node,
                "refers to a secret, which a server added at run time cannot do; "
                "name a credential of sidecar.yaml instead",
            )
        return self._text.read(node, at)

    def schema(self) -> Schema:
        return self._text.schema()


class _Only(Shape[bool]):
    """A flag that has one value here."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def read(self, node: nodes.Node, at: At) -> bool | Bad:
        if isinstance(node, nodes.Scalar) and node.value is self._value:
            return self._value
        word = "true" if self._value else "false"
        return at.fault(
            node, f"can only be {word}: what loosens belongs to a server of sidecar.yaml"
        )

    def schema(self) -> Schema:
        return {"const": self._value}


class _Few(Shape[tuple[str, ...]]):
    """A list of at most ``MOST_ENTRIES``."""

    def __init__(self, listed: ListOf[str]) -> None:
        self._listed = listed

    def read(self, node: nodes.Node, at: At) -> tuple[str, ...] | Bad:
        if isinstance(node, nodes.Sequence) and len(node.items) > MOST_ENTRIES:
            return at.fault(node, f"has more than {MOST_ENTRIES} entries")
        return self._listed.read(node, at)

    def schema(self) -> Schema:
        return self._listed.schema() | {"maxItems": MOST_ENTRIES}


def _value(check: object) -> Text[str]:
    def parse(text: str) -> str:
        if len(text) > LONGEST_VALUE:
            raise ValueError(f"is longer than {LONGEST_VALUE} characters")
        if callable(check):
            check(text)
        return text

    return Text("text", parse, {"type": "string", "maxLength": LONGEST_VALUE}, quiet=True)


def _header_value(value: str) -> None:
    values.header_value(value)
    if not value.isascii():
        # RFC 9110 section 5.5: whoever reads it may take it for another text.
        raise ValueError("has a character that is not ASCII; percent-encode it")


class Option:
    """Fields of the options of a server that is added at run time."""

    URL = Field("url", _value(values.url), "", "Its MCP address, http:// or https://.")
    TRANSPORT = Field(
        "transport",
        Choice("stdio", "http", "sse"),
        "",
        "http is Streamable HTTP, the default with url; sse is the older HTTP+SSE.",
    )
    COMMAND = Field(
        "command",
        _Few(ListOf(_value(None), what="texts", least=1)),
        (),
        "A program and its arguments, where runtime_servers.commands allows it.",
    )
    ENV = Field(
        "env",
        MapOf(_Literal(_value(values.env_value)), what="variables", key=values.env_name),
        {},
        "Variables of the program's environment.",
    )
    CWD = Field("cwd", FilePath(), None, "The folder in which the program starts.")
    HEADERS = Field(
        "headers",
        MapOf(_Literal(_value(_header_value)), what="headers", key=values.header_name),
        {},
        "Headers of every request; no secrets.",
    )
    CREDENTIAL = Field(
        "credential",
        plain_text("a credential's name", values.LONGEST_NAME),
        None,
        "A credential of sidecar.yaml; sent to its own origins only.",
    )
    CREDENTIAL_NAME = Field(
        "credential_name",
        plain_text("a credential's name", values.LONGEST_NAME),
        None,
        "Another word for credential.",
    )
    ONLY = Field("only", _Few(GLOBS), None, "Offer only tools that match.")
    EXCEPT = Field("except", _Few(GLOBS), None, "Offer all tools but those that match.")
    GATED = Field("gated", _Only(True), None, "true: a person approves every call.")
    TRUSTED = Field("trusted", _Only(False), False, "Its answers always carry the label outside.")
    HINTS = Field(
        "hints", Choice("restrict"), "restrict", "Its own hints only make a tool stricter."
    )
    TIMEOUT = Field("timeout", duration(0.01, LONGEST_TIMEOUT), 30.0, "For one attempt.")
    ERA = Field("era", Choice("auto", "legacy", "modern"), "auto", "The generation of MCP.")
    ISOLATION = Field(
        "isolation",
        Choice("auto", "shared", "session"),
        "auto",
        "Whether sessions of agents share one connection.",
    )


@dataclass(frozen=True, slots=True)
class Options:
    """The options as they were read; ``headers`` and ``env`` hold their values themselves."""

    url: str
    transport: Literal["stdio", "http", "sse"]
    command: tuple[str, ...]
    env: dict[str, str]
    cwd: Path | None
    headers: dict[str, str]
    credential: str | None
    only: tuple[str, ...] | None
    except_: tuple[str, ...] | None
    gated: bool | None
    timeout: float
    era: Literal["auto", "legacy", "modern"]
    isolation: Literal["auto", "shared", "session"]


# A header that authenticates is a secret: it is not written into a store that many can read.
# There is no end of their names, and almost all say it in one word.
_SECRET_WORDS = {
    *("authorization", "auth", "cookie", "cookie2", "token", "secret", "password", "passwd"),
    *("passphrase", "credential", "credentials", "apikey", "jwt", "sessionid"),
}
_SECRET_KEYS = {"api", "access", "auth", "private", "secret", "subscription", "service", "client"}
_SCHEMES = ("bearer ", "basic ")


def _holds_secret(header: str, value: str) -> bool:
    words = set(header.lower().replace("_", "-").split("-"))
    if words & _SECRET_WORDS or ("key" in words and words & _SECRET_KEYS):
        return True
    return value.lower().startswith(_SCHEMES)


_QUERY_WORDS = _SECRET_WORDS | {"key", "sig", "signature", "pat", "pwd"}


def query_holds_secret(url: str) -> bool:
    """Whether a URL has what looks like a secret in its query, by the names of its parameters."""
    for part in urlsplit(url).query.replace(";", "&").split("&"):
        name = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", unquote(part.partition("=")[0]))
        if set(re.split(r"[^a-z0-9]+", name.lower())) & _QUERY_WORDS:
            return True
    return False


def _options(got: Got) -> Options:
    command, url = got.has(Option.COMMAND), got.has(Option.URL)
    if command == url:
        why = "both are here" if command else "neither is here"
        got.fault(None, f"a server has url (HTTP) or command (stdio); {why}")
    for wanted in (Option.HEADERS, Option.CREDENTIAL, Option.CREDENTIAL_NAME):
        if command and got.has(wanted):
            got.fault(wanted, "belongs to a server with url; this one has command")
    for field in (Option.ENV, Option.CWD):
        if url and got.has(field):
            got.fault(field, "belongs to a server with command; this one has url")
    transport = got[Option.TRANSPORT]
    if transport and (transport == "stdio") != command:
        got.fault(Option.TRANSPORT, "does not go with " + ("command" if command else "url"))
    if got.has(Option.ONLY) and got.has(Option.EXCEPT):
        got.fault(Option.EXCEPT, "stands beside only; keep one of them")
    cwd = got.place(Option.CWD)
    if got.good(Option.CWD) and not (isinstance(cwd, nodes.Scalar) and cwd.text.startswith("/")):
        got.fault(Option.CWD, "is relative; write a path that begins with /")
    credential = got[Option.CREDENTIAL] or got[Option.CREDENTIAL_NAME]
    if got.has(Option.CREDENTIAL) and got.has(Option.CREDENTIAL_NAME):
        got.fault(Option.CREDENTIAL_NAME, "stands beside credential; keep one of them")
    _headers(got)
    for wide in (Option.HEADERS, Option.ENV):
        if len(got[wide]) > MOST_ENTRIES:
            got.fault(wide, f"has more than {MOST_ENTRIES} entries")
    if command and got[Option.COMMAND][:1] == ("",):
        got.fault(Option.COMMAND, "begins with an empty text; name the program")
    return Options(
        url=got[Option.URL],
        transport="stdio" if command else "sse" if transport == "sse" else "http",
        command=got[Option.COMMAND],
        env=got[Option.ENV],
        cwd=got[Option.CWD],
        headers=got[Option.HEADERS],
        credential=credential,
        only=got[Option.ONLY],
        except_=got[Option.EXCEPT],
        gated=got[Option.GATED],
        timeout=got[Option.TIMEOUT],
        era=cast("Literal['auto', 'legacy', 'modern']", got[Option.ERA]),
        isolation=cast("Literal['auto', 'shared', 'session']", got[Option.ISOLATION]),
    )


def _headers(got: Got) -> None:
    lower: set[str] = set()
    for header, value in got[Option.HEADERS].items():
        if header.lower() in lower:
            got.fault(Option.HEADERS, f"{header.lower()} is here twice")
        lower.add(header.lower())
        if _holds_secret(header, value):
            got.fault(
                Option.HEADERS,
                f"{header.lower()} holds a secret, which is not kept in the store; "
                "name a credential of sidecar.yaml instead",
            )


_LOOSENS = "what loosens belongs to a server of sidecar.yaml"
OPTIONS = Record(
    "a server's options",
    every(Option),
    _options,
    hints={
        "annotations": _LOOSENS,
        "egress": "how it is dialled is decided by sidecar.yaml",
        "args": "write the arguments after the program, in command: [program, argument]",
        "type": "write transport",
        "token": "name a credential of sidecar.yaml",
    },
    rules={
        "oneOf": [{"required": ["command"]}, {"required": ["url"]}],
        "allOf": [
            {"not": {"required": ["only", "except"]}},
            {"not": {"required": ["credential", "credential_name"]}},
        ],
    },
)


def read_options(given: nodes.Plain) -> Options | list[Fault]:
    """The options of a server to be added, or everything that is wrong with them."""
    faults = Faults()
    # Relative paths would depend on where the sidecar was started.
    context = Context("", Path("/"), {}, faults)
    read = OPTIONS.read(nodes.of(given), At(context))
    if faults.found or isinstance(read, Bad):
        return faults.found
    return read
