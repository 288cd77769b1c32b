"""Answers one request of either era, whatever carried it, and never fails."""

from __future__ import annotations

import logging
import traceback

from sidecar.downstream.running import Answer
from sidecar.downstream.session import Session
from sidecar.gateway import Gateway
from sidecar.mcp import errors, methods, rounds, shape
from sidecar.mcp.versions import MODERN_VERSIONS
from sidecar.model import (
    Caller,
    Era,
    Fields,
    JsonObject,
    RequestId,
    RpcError,
    Unavailable,
    Unroutable,
)
from sidecar.wire import jsonrpc

log = logging.getLogger("sidecar.downstream")


class Desk:
    """Hands requests to the gateway and puts its answers into the caller's era.

    ``name`` and ``version`` are what we call ourselves to clients.
    """

    def __init__(self, gateway: Gateway, name: str, version: str) -> None:
        self.gateway = gateway
        self.server_info: JsonObject = {"name": name, "version": version}

    async def answer(
        self,
        id: RequestId,
        method: str,
        params: JsonObject,
        caller: Caller,
        session: Session | None = None,
    ) -> Answer:
        """The answer to one request, an error if need be. ``session`` is a legacy caller's."""
        try:
            fields = await self._ask(method, params, caller, session)
            shaped = shape.result_for(caller.era, method, fields, self.server_info)
            return Answer(jsonrpc.result(id, shaped))
        except Exception as failure:  # noqa: BLE001  what breaks here is one answer, not the server
            return failed(id, failure, caller.era, method, params.get("uri"))

    async def _ask(
        self, method: str, params: JsonObject, caller: Caller, session: Session | None
    ) -> Fields:
        if not methods.exists(caller.era, method):
            raise errors.method_not_found(method)
        if caller.era is Era.MODERN:
            caller.brought = rounds.take(method, params)
        if method == "ping":
            self.gateway.span(method, caller).end()
            return {}
        if method == "server/discover":
            return self.discover(caller)
        if method == "initialize":
            raise errors.invalid_request("this session is initialised already")
        if method == "subscriptions/listen":
            raise errors.invalid_request("subscriptions/listen is answered with a stream")
        fields = await self.gateway.request(method, params, caller)
        if method == "logging/setLevel" and session is not None:
            level = params.get("level")
            if isinstance(level, str):
                session.log_level = level
        return fields

    def initialize(self, version: str, caller: Caller) -> Fields:
        """The result of ``initialize``. Waits for no server."""
        span = self.gateway.span("initialize", caller)
        result = self._about(caller)
        span.end()
        return {
            "protocolVersion": version,
            "capabilities": result["capabilities"],
            "serverInfo": self.server_info,
            **({"instructions": result["instructions"]} if "instructions" in result else {}),
        }

    def discover(self, caller: Caller) -> Fields:
        """The result of ``server/discover``. Waits for no server."""
        span = self.gateway.span("server/discover", caller)
        about = {"supportedVersions": list(MODERN_VERSIONS), **self._about(caller)}
        span.end()
        return about

    def _about(self, caller: Caller) -> Fields:
        about: Fields = {"capabilities": self.gateway.capabilities(caller)}
        instructions = self.gateway.instructions(caller)
        if instructions:
            about["instructions"] = instructions
        return about


def failed(
    id: RequestId | None, failure: Exception, era: Era, method: str = "", uri: object = None
) -> Answer:
    """The answer that says what went wrong. What is our own fault is logged, without its text."""
    if not isinstance(failure, (RpcError, Unavailable, Unroutable)):
        log.error("answering %s failed: %s", method, fault(failure))
    error = shape.error_for(era, errors.of(failure), method, uri if isinstance(uri, str) else None)
    return Answer(jsonrpc.error(id, error), error.code)


def fault(failure: BaseException) -> str:
    """An exception's type and where it came from; not its text, which may quote what was sent."""
    frames = traceback.extract_tb(failure.__traceback__)[-3:]
    where = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(failure).__name__} at {where}"
