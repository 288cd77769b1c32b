"""Every key of ``servers.*``."""

from __future__ import annotations

from typing import Literal, cast

from sidecar.config import notbuilt, values
from sidecar.config.egress import PROXY_VARIABLES
from sidecar.config.record import Field, Got, Record, every
from sidecar.config.shapes import (
    Choice,
    Either,
    FilePath,
    Flag,
    ListOf,
    MapOf,
    Secret,
    Text,
    duration,
    plain_text,
    quiet_text,
)
from sidecar.config.types import AnnotationOverride, ServerConfig

LONGEST_TIMEOUT = 86400.0

GLOBS = ListOf(Text("a pattern", values.glob, {"type": "string"}), what="patterns")


class Annotation:
    """Fields of ``servers.*.annotations.*``."""

    READ_ONLY = Field("read_only", Flag(), None, "The tool changes nothing.")
    DESTRUCTIVE = Field("destructive", Flag(), None, "The tool may destroy something.")
    IDEMPOTENT = Field("idempotent", Flag(), None, "Calling it again changes nothing more.")
    OPEN_WORLD = Field("open_world", Flag(), None, "The tool reaches beyond its own data.")
    TITLE = Field("title", plain_text("a title", 256), None, "What people see.")


def _annotation(got: Got) -> AnnotationOverride:
    return AnnotationOverride(
        got[Annotation.READ_ONLY],
        got[Annotation.DESTRUCTIVE],
        got[Annotation.IDEMPOTENT],
        got[Annotation.OPEN_WORLD],
        got[Annotation.TITLE],
    )


ANNOTATION = Record(
    "a mapping of hints",
    every(Annotation),
    _annotation,
    hints={
        "readOnlyHint": "write read_only",
        "destructiveHint": "write destructive",
        "idempotentHint": "write idempotent",
        "openWorldHint": "write open_world",
    },
)


class Server:
    """Fields of ``servers.*``."""

    COMMAND = Field(
        "command",
        ListOf(quiet_text("text"), what="texts", least=1),
        (),
        "A stdio server: the program and its arguments.",
    )
    ENV = Field(
        "env",
        MapOf(Secret(values.env_value), what="variables", key=values.env_name),
        {},
        "Variables of the program's environment, beside PATH HOME USER LANG TERM TMPDIR.",
        empty=True,
    )
    CWD = Field("cwd", FilePath(), None, "The folder in which the program starts.")
    URL = Field("url", quiet_text("a URL", values.url), "", "An HTTP server: its MCP address.")
    TRANSPORT = Field(
        "transport",
        Choice("stdio", "http", "sse"),
        "",
        "http is Streamable HTTP, the default with url; sse is the older HTTP+SSE.",
    )
    HEADERS = Field(
        "headers",
        MapOf(Secret(values.header_value), what="headers", key=values.header_name),
        {},
        "Headers of every request to url.",
        empty=True,
    )
    ONLY = Field("only", GLOBS, None, "Offer only tools that match; globs over its own names.")
    EXCEPT = Field("except", GLOBS, None, "Offer all tools but those that match.")
    TRUSTED = Field("trusted", Flag(), False, "Its answers carry no label outside.")
    GATED = Field(
        "gated",
        Either[bool | tuple[str, ...]](Flag(), GLOBS, "true, false or a list of patterns"),
        None,
        "Which tools a person approves; when absent, all that are not read-only.",
    )
    ANNOTATIONS = Field(
        "annotations",
        MapOf(ANNOTATION, what="patterns", key=values.glob),
        {},
        "Your word on its tools' hints, by pattern; the first that matches counts.",
        empty=True,
    )
    HINTS = Field(
        "hints",
        Choice("trust", "restrict"),
        "trust",
        "restrict: its own hints may only make a tool stricter.",
    )
    TIMEOUT = Field(
        "timeout", duration(0.01, LONGEST_TIMEOUT), 30.0, "For one attempt of one request."
    )
    ERA = Field(
        "era", Choice("auto", "legacy", "modern"), "auto", "The generation of MCP it speaks."
    )
    ISOLATION = Field(
        "isolation",
        Choice("auto", "shared", "session"),
        "auto",
        "Whether sessions of agents share one connection.",
    )
    EGRESS = Field(
        "egress",
        Choice("direct", "proxy"),
        "direct",
        "proxy: a stdio server is told to use the forward proxy.",
    )


def _server(got: Got) -> ServerConfig:
    transport = _transport(got)
    if got.has(Server.ONLY) and got.has(Server.EXCEPT):
        got.fault(Server.EXCEPT, "stands beside only; keep one of them")
    lower: dict[str, str] = {}
    for header in got[Server.HEADERS]:
        first = lower.setdefault(header.lower(), header)
        if first != header:
            got.fault(Server.HEADERS, f"{first} and {header} are one header; keep one of them")
    if got[Server.EGRESS] == "proxy":
        _proxied(got, transport)
    return ServerConfig(
        name=got.at.key,
        transport=transport,
        command=got[Server.COMMAND],
        env=got[Server.ENV],
        cwd=got[Server.CWD],
        url=got[Server.URL],
        headers=got[Server.HEADERS],
        only=got[Server.ONLY],
        except_=got[Server.EXCEPT],
        trusted=got[Server.TRUSTED],
        gated=got[Server.GATED],
        annotations=tuple(got[Server.ANNOTATIONS].items()),
        hints=cast("Literal['trust', 'restrict']", got[Server.HINTS]),
        timeout=got[Server.TIMEOUT],
        era=cast("Literal['auto', 'legacy', 'modern']", got[Server.ERA]),
        isolation=cast("Literal['auto', 'shared', 'session']", got[Server.ISOLATION]),
        egress=cast("Literal['direct', 'proxy']", got[Server.EGRESS]),
    )


def _proxied(got: Got, transport: str) -> None:
    if transport != "stdio":
        got.fault(Server.EGRESS, "proxy belongs to a server with command; url is dialled by us")
    for name in got[Server.ENV]:
        if name.lower() in PROXY_VARIABLES:
            got.fault(Server.ENV, f"{name} is set by the sidecar where egress is proxy")


def _transport(got: Got) -> Literal["stdio", "http", "sse"]:
    command, url = got.has(Server.COMMAND), got.has(Server.URL)
    if command == url:
        why = "has both; keep one of them" if command else "has neither; give it one of them"
        got.fault(None, f"a server has command (stdio) or url (HTTP): this one {why}")
    elif command:
        if got[Server.COMMAND][:1] == ("",):
            got.fault(Server.COMMAND, "begins with an empty text; name the program")
        if got.has(Server.HEADERS):
            got.fault(Server.HEADERS, "belongs to a server with url; this one has command")
        if got[Server.TRANSPORT] in ("http", "sse"):
            got.fault(Server.TRANSPORT, "belongs to a server with url; this one has command")
    else:
        if got.has(Server.ENV):
            got.fault(Server.ENV, "belongs to a server with command; this one has url")
        if got.has(Server.CWD):
            got.fault(Server.CWD, "belongs to a server with command; this one has url")
        if got[Server.TRANSPORT] == "stdio":
            got.fault(Server.TRANSPORT, "stdio belongs to a server with command; remove it")
    if command:
        return "stdio"
    return "sse" if got[Server.TRANSPORT] == "sse" else "http"


SERVER = Record(
    "a server's mapping",
    every(Server),
    _server,
    notbuilt.rows("servers.*"),
    hints={
        "args": "write the arguments after the program, in command: [program, argument]",
        "type": "write transport",
        "token": "write headers: {authorization: {template: 'Bearer {}', from_file: PATH}}",
    },
    rules={
        "oneOf": [{"required": ["command"]}, {"required": ["url"]}],
        "not": {"required": ["only", "except"]},
        "if": {"required": ["url"]},
        "then": {"properties": {"egress": {"const": "direct"}}},
    },
)
