"""Requests that go to one server: find it, put its own names in, run the call."""

from __future__ import annotations

import uuid
from typing import cast

from sidecar.catalog import Entry, Untold, View
from sidecar.gateway.agents import is_harness
from sidecar.gateway.calls import Calls
from sidecar.gateway.roster import Roster
from sidecar.gateway.watches import Watch, Watches
from sidecar.mcp.errors import invalid_params, method_not_found
from sidecar.mcp.methods import LOG_LEVELS
from sidecar.model import Call, Caller, Fields, JsonObject, Kind, Unroutable
from sidecar.ports.agents import AgentUpstream
from sidecar.ports.upstream import Upstream


class Requests:
    """One method per method of the protocol; each raises as ``Gateway.request``."""

    def __init__(self, roster: Roster, calls: Calls, watches: Watches) -> None:
        self._roster = roster
        self._calls = calls
        self._watches = watches

    # ------------------------------------------------------------------- tools and prompts

    async def call_tool(
        self, params: JsonObject, caller: Caller, separator: str | None = None
    ) -> Fields:
        """``tools/call``."""
        name = _text(params, "name")
        _object_or_absent(params, "arguments")
        view = View.of(caller)
        try:
            entry = self._roster.tool(name, view, separator)
        except Untold as untold:
            # Somebody who calls what they know is there need not list first.
            await self._roster.told(untold.server, caller.deadline)
            entry = self._roster.tool(name, view, separator)
        call = Call(
            _new_id(),
            Kind.MCP,
            "tools/call",
            entry.server,
            entry.name,
            entry.key,
            {**params, "name": entry.key},
            entry.tool,
        )
        slot = self._roster.slots.get(entry.server)
        if slot is None or not is_harness(slot.config):
            return await self._calls.run(call, caller)
        harness = cast("AgentUpstream", slot.upstream)
        call.kind = Kind.ACP
        call.about = harness.about(call.params, caller)
        return await self._calls.run(call, caller, _run, joins=harness.joins(call, caller))

    async def get_prompt(self, params: JsonObject, caller: Caller) -> Fields:
        """``prompts/get``."""
        name = _text(params, "name")
        _object_or_absent(params, "arguments")
        entry = await self._prompt(name, caller)
        call = Call(
            _new_id(),
            Kind.PROMPT,
            "prompts/get",
            entry.server,
            entry.name,
            entry.key,
            {**params, "name": entry.key},
        )
        return await self._calls.run(call, caller)

    async def _prompt(self, name: str, caller: Caller) -> Entry:
        view = View.of(caller)
        self._roster.refresh()
        try:
            return self._roster.catalog.route_prompt(name, view)
        except Untold as untold:
            await self._roster.told(untold.server, caller.deadline)
            return self._roster.catalog.route_prompt(name, view)

    # --------------------------------------------------------------------------- resources

    async def read_resource(self, params: JsonObject, caller: Caller) -> Fields:
        """``resources/read``."""
        uri = _text(params, "uri")
        server = await self._resource(uri, caller)
        call = Call(_new_id(), Kind.RESOURCE, "resources/read", server, uri, uri, params)
        return await self._calls.run(call, caller)

    async def subscribe(self, params: JsonObject, caller: Caller) -> Fields:
        """``resources/subscribe``: the session's, until it unsubscribes or ends."""
        uri = _text(params, "uri")
        if not caller.session:
            raise method_not_found("resources/subscribe")
        return await self.watch(uri, caller, self._watches.session(caller))

    async def watch(self, uri: str, caller: Caller, watch: Watch) -> Fields:
        """Make ``uri`` part of what ``watch`` watches; a call like any other."""
        server = await self._resource(uri, caller)
        self._watches.check(watch, server, uri)

        async def send(upstream: Upstream, call: Call, caller: Caller) -> Fields:
            await self._watches.begin(watch, upstream, uri, caller)
            return {}

        params: JsonObject = {"uri": uri}
        call = Call(_new_id(), Kind.RESOURCE, "resources/subscribe", server, uri, uri, params)
        return await self._calls.run(call, caller, send)

    async def unsubscribe(self, params: JsonObject, caller: Caller) -> Fields:
        """``resources/unsubscribe``; it gives nothing, so nobody decides it."""
        uri = _text(params, "uri")
        if not caller.session:
            raise method_not_found("resources/unsubscribe")
        await self._watches.end(self._watches.session(caller), uri, caller)
        return {}

    async def _resource(self, uri: str, caller: Caller) -> str:
        view = View.of(caller)
        self._roster.refresh()
        if not self._roster.catalog.lists_resource(uri, view):
            # It may be listed by one that has not told yet, and then it is that one's.
            await self._resources(view, caller)
        return self._roster.catalog.route_resource(uri, view)

    async def _resources(self, view: View, caller: Caller) -> None:
        if view.server is None:
            await self._roster.settle(view)
        elif self._roster.visible(view):
            await self._roster.told(view.server, caller.deadline)
        else:
            raise Unroutable("unknown_server", f"there is no server {view.server!r} here")
        self._roster.refresh()

    # ------------------------------------------------------------------ completion, logging

    async def complete(self, params: JsonObject, caller: Caller) -> Fields:
        """``completion/complete``, by a prompt's name or a resource template."""
        ref = params.get("ref")
        if not isinstance(ref, dict):
            raise invalid_params("params.ref is an object")
        reference = cast("JsonObject", ref)
        if reference.get("type") == "ref/prompt":
            entry = await self._prompt(_text(reference, "name", "params.ref"), caller)
            server, target, own = entry.server, entry.name, entry.key
            sent: JsonObject = {**params, "ref": {**reference, "name": own}}
        elif reference.get("type") == "ref/resource":
            own = target = _text(reference, "uri", "params.ref")
            view = View.of(caller)
            await self._resources(view, caller)
            server = self._roster.catalog.route_template(own, view)
            sent = params
        else:
            raise invalid_params('params.ref.type is "ref/prompt" or "ref/resource"')
        call = Call(_new_id(), Kind.COMPLETION, "completion/complete", server, target, own, sent)
        return await self._calls.run(call, caller)

    async def set_level(self, params: JsonObject, caller: Caller) -> Fields:
        """``logging/setLevel``: the session's, at every server that logs."""
        level = params.get("level")
        if level not in LOG_LEVELS:
            raise invalid_params(f"params.level is one of {', '.join(LOG_LEVELS)}")
        if not caller.session:
            raise method_not_found("logging/setLevel")
        view = View.of(caller)
        able = {s.config.name for s in self._roster.shelves(view) if not s.told or s.has("logging")}
        slots = [slot for slot in self._roster.visible(view) if slot.name in able]
        await self._watches.set_level(level, caller, slots, self._roster.list_wait)
        return {}


async def _run(upstream: Upstream, call: Call, caller: Caller) -> Fields:
    return await cast("AgentUpstream", upstream).run(call, caller)


def _new_id() -> str:
    return str(uuid.uuid4())


def _text(params: JsonObject, key: str, where: str = "params") -> str:
    value = params.get(key)
    if not isinstance(value, str):
        raise invalid_params(f"{where}.{key} is a string")
    return value


def _object_or_absent(params: JsonObject, key: str) -> None:
    if not isinstance(params.get(key), dict | None):
        raise invalid_params(f"params.{key} is an object")
