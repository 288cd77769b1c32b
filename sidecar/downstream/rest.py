"""The REST face: the catalog as a model API takes it, and one call (``GET /v1/tools``,
``POST /v1/call``)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Literal, cast
from urllib.parse import parse_qsl

from aiohttp import web

from sidecar.downstream import bodies
from sidecar.downstream.auth import Grant
from sidecar.downstream.desk import fault, log
from sidecar.downstream.exchange import Exchange
from sidecar.downstream.replies import Refusal
from sidecar.downstream.running import Answer, Crowd
from sidecar.downstream.state import State
from sidecar.downstream.trace import trace_of
from sidecar.mcp import errors, shape
from sidecar.model import (
    Caller,
    Era,
    Fields,
    JsonObject,
    RpcError,
    Unavailable,
    Unroutable,
)
from sidecar.wire.json import BadJson, encode

MOST_TIMEOUT = 3600.0
"""Seconds that ``timeout`` may ask for."""

_PLAIN_KEYS = frozenset({"name", "args", "separator", "timeout"})
_BLOCK_KINDS = ("tool_use", "function")
_QUERY = frozenset({"format", "separator", "server"})
_FORMATS = ("mcp", "anthropic", "openai")


class Rest:
    """``GET /v1/tools`` and ``POST /v1/call``."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def tools(
        self, request: web.BaseRequest, grant: Grant, body: bytes, server: str | None
    ) -> web.StreamResponse:
        """``{"tools": […]}`` in the format asked for."""
        query = _query(request)
        format_ = query.get("format", "mcp")
        if format_ not in _FORMATS:
            raise Refusal(400, f"format is one of {', '.join(_FORMATS)}")
        self._state.admit(None)
        work = self._state.gateway.tools_as(
            cast("Literal['mcp', 'anthropic', 'openai']", format_),
            _caller(request, grant),
            separator=query.get("separator"),
            server=query.get("server"),
        )
        return await self._respond(request, grant, _answer(work))

    async def call(
        self, request: web.BaseRequest, grant: Grant, body: bytes, server: str | None
    ) -> web.StreamResponse:
        """A CallToolResult, or ``{"error": {code, message, data}}`` with the status that fits."""
        try:
            decoded = bodies.read(body, self._state.limits)
        except BadJson as bad:
            raise Refusal(400, str(bad), error=errors.parse_error(str(bad))) from None
        if not isinstance(decoded, dict):
            raise Refusal(400, "the body is an object: {name, args} or a model's tool call")
        asked = cast("JsonObject", decoded)
        separator = asked.pop("separator", None)
        if separator is not None and not isinstance(separator, str):
            raise Refusal(400, "separator is a string")
        caller = _caller(request, grant)
        timeout = asked.pop("timeout", None)
        if timeout is not None:
            caller.deadline = asyncio.get_running_loop().time() + _seconds(timeout)
        self._state.admit(None)
        gateway = self._state.gateway
        if asked.get("type") in _BLOCK_KINDS or "function" in asked:
            work = gateway.call_block(asked, caller, separator=separator)
        else:
            name, args = _plain(asked)
            work = gateway.call(name, args, caller, separator=separator)
        return await self._respond(request, grant, _answer(work, "tools/call"))

    async def _respond(
        self, request: web.BaseRequest, grant: Grant, work: Coroutine[object, object, Answer]
    ) -> web.StreamResponse:
        exchange = _RestExchange(self._state.crowd, grant)
        exchange.start(work)
        return await exchange.respond(request)


class _RestExchange(Exchange):
    """A running REST request: never a stream, and its answer's code is its HTTP status."""

    __slots__ = ()

    def __init__(self, crowd: Crowd, grant: Grant) -> None:
        super().__init__(crowd, grant, None, era=Era.MODERN, sse=False)

    def answer(self) -> Answer | None:
        if self.error is not None:
            return _failed(self.error)
        return super().answer()

    def _status(self, answer: Answer) -> int:
        return self.status or answer.code


async def _answer(work: Coroutine[object, object, Fields], method: str = "") -> Answer:
    try:
        fields = await work
        # No keys of an era: a result as every revision has had it.
        plain = shape.result_for(Era.LEGACY, method, fields, {}) if method else fields
        return Answer(encode(plain), errors.rest_status(plain))
    except Exception as failure:  # noqa: BLE001  what breaks here is one answer, not the server
        if not isinstance(failure, (RpcError, Unavailable, Unroutable)):
            log.error("answering a REST request failed: %s", fault(failure))
        return _failed(failure)


def _failed(failure: Exception) -> Answer:
    status, body = errors.rest(failure)
    return Answer(encode(body), status)


def _query(request: web.BaseRequest) -> dict[str, str]:
    _, _, text = request.raw_path.partition("?")
    try:
        pairs = parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=bool(text),
            errors="strict",
            max_num_fields=16,
        )
    except ValueError:
        raise Refusal(400, "the query cannot be read") from None
    query = dict(pairs)
    if len(query) != len(pairs) or not query.keys() <= _QUERY:
        raise Refusal(400, f"the query has {', '.join(sorted(_QUERY))}, each at most once")
    return query


def _plain(asked: JsonObject) -> tuple[str, JsonObject]:
    name, args = asked.get("name"), asked.get("args", {})
    if not isinstance(name, str) or not name:
        raise Refusal(400, "name is a tool's name, a string; or send a model's tool call")
    if not isinstance(args, dict):
        raise Refusal(400, "args is an object")
    if not asked.keys() <= _PLAIN_KEYS:
        raise Refusal(400, f"the body has {', '.join(sorted(_PLAIN_KEYS))} and nothing else")
    return name, cast("JsonObject", args)


def _seconds(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not 0 < value <= MOST_TIMEOUT
    ):
        raise Refusal(400, f"timeout is seconds, more than 0 and at most {MOST_TIMEOUT:.0f}")
    return float(value)


def _caller(request: web.BaseRequest, grant: Grant) -> Caller:
    return Caller(principal=grant.principal, trace=trace_of(request.headers))
