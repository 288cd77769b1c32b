"""Spans around a request and around each attempt (OTel semantic conventions for MCP)."""

from __future__ import annotations

from sidecar.model import (
    Call,
    Caller,
    Decision,
    Kind,
    Notify,
    RpcError,
    TraceContext,
    Unavailable,
    Unroutable,
)
from sidecar.ports.tracer import Span

METHOD = "mcp.method.name"
SESSION = "mcp.session.id"
TOOL = "gen_ai.tool.name"
PROMPT = "gen_ai.prompt.name"
OPERATION = "gen_ai.operation.name"
SERVER = "sidecar.server"
CALL = "sidecar.call"
ATTEMPT = "sidecar.attempt"

DECISION = "sidecar.decision"
RULE = "sidecar.rule"
REVISION = "sidecar.policy.revision"
WOULD = "sidecar.would"
WOULD_RULE = "sidecar.would_rule"

_TOOLS = (Kind.MCP, Kind.ACP)
_SHOWN = (*_TOOLS, Kind.PROMPT)


def name(call: Call) -> str:
    """``{method} {target}``; a URI is not part of a name: there are too many of them."""
    return f"{call.method} {call.target}" if call.kind in _SHOWN else call.method


def describe(span: Span, call: Call, caller: Caller) -> None:
    """Say what the call is, on a span that somebody keeps."""
    span.set(METHOD, call.method)
    span.set(SERVER, call.server)
    span.set(CALL, call.id)
    if caller.session:
        span.set(SESSION, caller.session)
    if call.kind in _TOOLS:
        span.set(TOOL, call.target)
        span.set(OPERATION, "execute_tool")
    elif call.kind is Kind.PROMPT:
        span.set(PROMPT, call.target)


def decided(span: Span, decision: Decision) -> None:
    """Say what policy said, and what it would have said were all of its rules in force."""
    span.set(DECISION, decision.decision)
    span.set(RULE, decision.rule)
    if decision.revision:
        span.set(REVISION, decision.revision)
    if decision.would is not None:
        span.set(WOULD, decision.would)
        span.set(WOULD_RULE, decision.would_rule)


def error_type(failure: BaseException) -> str:
    """``error.type`` by convention: a code, a name, never a text."""
    if isinstance(failure, RpcError):
        return str(failure.code)
    if isinstance(failure, Unavailable):
        return "unavailable"
    if isinstance(failure, Unroutable):
        return failure.reason
    return type(failure).__name__


def under(caller: Caller, context: TraceContext) -> Caller:
    """The caller with another span to go on from; itself where the span is the same."""
    if context is caller.trace or context == caller.trace:
        return caller
    return _caller(caller, context, caller.notify)


def answering(caller: Caller, notify: Notify) -> Caller:
    """The caller with another way back."""
    return _caller(caller, caller.trace, notify)


def _caller(caller: Caller, context: TraceContext, notify: Notify) -> Caller:
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
    )
