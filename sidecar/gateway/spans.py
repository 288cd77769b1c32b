"""Spans around a request and around each attempt (OTel semantic conventions for MCP)."""

from __future__ import annotations

from urllib.parse import urlsplit

from sidecar.config import ServerConfig
from sidecar.model import (
    Call,
    Caller,
    Kind,
    Notify,
    RequestId,
    RpcError,
    Sent,
    TraceContext,
    Unavailable,
    Unroutable,
)
from sidecar.ports.tracer import Span
from sidecar.semconv import GenAi, Key, Mcp

_TOOLS = (Kind.MCP, Kind.ACP)
_SHOWN = (*_TOOLS, Kind.PROMPT)
_NO_ERROR = ("ok", "joined", "running")
"""Outcomes that are no error: somebody else's answer, and work that goes on."""


def name(call: Call) -> str:
    """``{method} {target}``; a URI is not part of a name: there are too many of them."""
    return f"{call.method} {call.target}" if call.kind in _SHOWN else call.method


def describe(span: Span, call: Call, caller: Caller) -> None:
    """Say what the call is, on a span that somebody keeps."""
    span.set(Mcp.METHOD, call.method)
    span.set(Key.SERVER, call.server)
    span.set(Key.CALL, call.id)
    if caller.session:
        span.set(Mcp.SESSION, caller.session)
    if call.kind in _TOOLS:
        span.set(GenAi.TOOL, call.target)
        span.set(GenAi.OPERATION, GenAi.EXECUTE_TOOL)
    elif call.kind is Kind.PROMPT:
        span.set(GenAi.PROMPT, call.target)


def asked(span: Span, method: str, caller: Caller) -> None:
    """Say who asks for what, on the span of their request."""
    span.set(Mcp.METHOD, method)
    span.set(Key.PRINCIPAL, caller.principal.name)
    span.set(Key.ERA, caller.era.value)
    if caller.request is not None:
        span.set(Mcp.REQUEST_ID, str(caller.request))
    if caller.protocol:
        span.set(Mcp.VERSION, caller.protocol)
    if caller.client.name:
        span.set(Key.CLIENT, caller.client.name)
    span.link(caller.link)


def peer(span: Span, config: ServerConfig) -> None:
    """Say who is asked, on the span of an attempt."""
    if config.transport == "stdio":
        span.set(Mcp.TRANSPORT, "pipe")
        return
    span.set(Mcp.TRANSPORT, "tcp")
    span.set(Mcp.PROTOCOL_NAME, "http")
    try:
        parts = urlsplit(config.url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return
    if host:
        span.set(Mcp.SERVER_ADDRESS, host)
        span.set(Mcp.SERVER_PORT, port or (443 if parts.scheme == "https" else 80))


def error_type(failure: BaseException) -> str:
    """``error.type`` by convention: a code, a name, never a text."""
    if isinstance(failure, RpcError):
        return str(failure.code)
    if isinstance(failure, Unavailable):
        return "unavailable"
    if isinstance(failure, Unroutable):
        return failure.reason
    return type(failure).__name__


def error_of(outcome: str) -> str | None:
    """``error.type`` of a call that was answered."""
    return None if outcome in _NO_ERROR else outcome


def failed(span: Span, failure: BaseException) -> str:
    """End a span with what was raised; returns its ``error.type``. Only our own words go with it:
    a server's may quote what was sent."""
    error = error_type(failure)
    if span.sampled and isinstance(failure, RpcError):
        span.set(Mcp.STATUS_CODE, error)
    span.end(error, failure.why if isinstance(failure, Unavailable) else "")
    return error


def under(caller: Caller, context: TraceContext) -> Caller:
    """The caller with another span to go on from; itself where the span is the same."""
    if context is caller.trace or context == caller.trace:
        return caller
    return _caller(caller, context, caller.notify)


def answering(caller: Caller, notify: Notify) -> Caller:
    """The caller with another way back."""
    return _caller(caller, caller.trace, notify)


def attempting(caller: Caller, span: Span) -> Caller:
    """The caller of one attempt, whose span hears with which id and version it is sent."""
    if not span.sampled:
        return under(caller, span.context)

    def sent(id: RequestId, version: str) -> None:
        # A repetition on a new session has another id; the last one has the answer.
        span.set(Mcp.REQUEST_ID, str(id))
        if version:
            span.set(Mcp.VERSION, version)

    return _caller(caller, span.context, caller.notify, sent)


def _caller(
    caller: Caller, context: TraceContext, notify: Notify, sent: Sent | None = None
) -> Caller:
    return Caller(
        caller.principal,
        caller.era,
        caller.session,
        caller.server,
        caller.client,
        caller.capabilities,
        context,
        caller.deadline,
        caller.progress,
        caller.log_level,
        notify,
        caller.ask,
        caller.brought,
        caller.link,
        caller.request,
        caller.updates,
        caller.protocol,
        sent,
    )
