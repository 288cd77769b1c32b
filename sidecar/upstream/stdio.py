"""A server behind stdin and stdout: newline-delimited JSON over a child process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from sidecar.children import Child, SpawnError, spawn
from sidecar.config import ServerConfig
from sidecar.model import Caller, Era, Fields, JsonObject, Unavailable
from sidecar.ports.proxy import ChildProxy, Grant, NoProxy
from sidecar.ports.secrets import SecretError, Secrets
from sidecar.upstream import prepare
from sidecar.upstream.conversation import Conversation
from sidecar.upstream.leg import SELF, Hello, Host, lose
from sidecar.upstream.listener import Listener
from sidecar.upstream.tasks import cancelled
from sidecar.wire.ndjson import Lines, line

GRACE = 2.0
"""Seconds a child gets to end by itself, and as many again after SIGTERM."""

_LAST_WORDS = 1.0
"""Seconds to read what a process wrote before it exited."""

_GONE = "the process is gone"
_CHUNK = 256 << 10
_FULL = 4 << 20
"""Bytes that may wait for a child that does not read, before callers have to wait too."""


def environment(config: ServerConfig, secrets: Secrets) -> Mapping[str, str]:
    """The configured variables with their values. Raises Unavailable."""
    found = {}
    for name, ref in config.env.items():
        try:
            found[name] = secrets.read(ref)
        except SecretError as error:
            raise Unavailable(
                config.name, f"env.{name}: {error}", ran="no", permanent=True
            ) from None
    return found


def granted(config: ServerConfig, proxy: ChildProxy | None) -> Grant | None:
    """A process's access to the forward proxy, where it is to use it. Raises Unavailable."""
    if config.egress != "proxy":
        return None
    try:
        if proxy is None:
            raise NoProxy("there is no forward proxy")
        return proxy.grant(config)
    except NoProxy as error:
        raise Unavailable(config.name, f"egress: {error}", ran="no", permanent=True) from None


class StdioLeg:
    """One process. It is started by ``start`` and is of use until it exits or closes stdout."""

    over_http = False

    def __init__(
        self, host: Host, child: Child, isolation: str = "", grant: Grant | None = None
    ) -> None:
        self.hello = Hello(Era.LEGACY, "", {})
        self.isolation = isolation
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._host = host
        self._child = child
        self._grant = grant
        self._listener: Listener | None = None
        self._ended = False
        self.conversation = Conversation(host, self._send, self._prepare, self._heard, "line")
        self._reader = asyncio.create_task(self._read(), name=f"{host.name}: stdout")

    @classmethod
    async def start(
        cls,
        host: Host,
        config: ServerConfig,
        secrets: Secrets,
        isolation: str = "",
        proxy: ChildProxy | None = None,
    ) -> StdioLeg:
        """Start the process; nothing is said to it yet. Raises Unavailable."""
        env = environment(config, secrets)
        grant = granted(config, proxy)
        if grant is not None:
            env = {**env, **grant.env}
        try:
            child = await spawn(config.command, env=env, cwd=config.cwd, name=config.name)
        except BaseException as error:
            if grant is not None:
                grant.revoke()
            if isinstance(error, SpawnError):
                raise Unavailable(config.name, str(error), ran="no") from None
            raise
        return cls(host, child, isolation, grant)

    def speak(self, era: Era) -> None:
        """Say what comes next in the way of this era."""
        self.hello = Hello(era, "", {})

    def welcome(self, hello: Hello) -> None:
        """The era is known and the server has said what it offers."""
        self.hello = hello
        self.conversation.log_alone = hello.era is Era.MODERN
        self.conversation.version = hello.version

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        return await self.conversation.request(method, params, caller)

    async def subscribe(self, uri: str) -> None:
        if self._listener is not None:
            self._listener.watch(uri)
        elif self.hello.era is Era.LEGACY:
            await self.request("resources/subscribe", {"uri": uri}, SELF)

    async def unsubscribe(self, uri: str) -> None:
        if self._listener is not None:
            self._listener.unwatch(uri)
        elif self.hello.era is Era.LEGACY:
            await self.request("resources/unsubscribe", {"uri": uri}, SELF)

    async def set_log_level(self, level: str) -> None:
        if self.hello.era is Era.LEGACY:
            await self.request("logging/setLevel", {"level": level}, SELF)

    def listen(self) -> None:
        if self.hello.era is Era.MODERN and self._listener is None:
            self._listener = Listener(self._host, self, self._listened)

    async def end(self) -> None:
        lose(self.gone, "the leg was ended")
        if self._listener is not None:
            await self._listener.end()
        # Its stdout is read until the end: a child that still writes must be able to.
        try:
            await self._child.end(GRACE)
        finally:
            if self._grant is not None:
                self._grant.revoke()
        await cancelled(self._reader)
        self.conversation.over("the server was ended")

    # ------------------------------------------------------------------------------- inside

    def _prepare(self, params: JsonObject, token: int, caller: Caller) -> JsonObject:
        trusted = self._host.trusted
        if self.hello.era is Era.MODERN:
            level = self._host.level_for(caller)
            return prepare.modern(params, token, caller, level, trusted=trusted)
        return prepare.legacy(params, token, caller, trusted=trusted)

    def _heard(self, method: str, params: JsonObject) -> None:
        if self._listener is None or not self._listener.heard(method):
            self._host.heard(self, method, params)

    async def _listened(self, params: JsonObject) -> None:
        await self.request("subscriptions/listen", params, SELF)

    async def _send(self, body: bytes) -> None:
        stdin = self._child.stdin
        try:
            if stdin.transport.get_write_buffer_size() > _FULL:
                await stdin.drain()
            if self._ended or self.gone.done() or stdin.is_closing():
                raise Unavailable(self._host.name, _GONE, ran="no")
            stdin.write(line(body))
            if stdin.is_closing():
                # The pipe took nothing: nobody is at its other end.
                raise Unavailable(self._host.name, _GONE, ran="no")
        except (OSError, RuntimeError):
            raise Unavailable(self._host.name, _GONE, ran="no") from None
        try:
            await stdin.drain()
        except (OSError, RuntimeError):
            # What the pipe took may have been read before the process went.
            raise Unavailable(self._host.name, _GONE, ran="maybe") from None

    async def _read(self) -> None:
        """Until stdout ends. One that a grandchild holds open ends with the process all the same:
        who is left did not answer before and would not answer now."""
        pump = asyncio.create_task(self._pump(), name=f"{self._host.name}: pump")
        exited = asyncio.create_task(self._exit(), name=f"{self._host.name}: exit")
        try:
            await asyncio.wait({pump, exited}, return_when=asyncio.FIRST_COMPLETED)
            self._ended = True
            await asyncio.wait({pump}, timeout=_LAST_WORDS)
        finally:
            await cancelled(pump, exited)
        why = await self._epitaph()
        self.conversation.over(why)
        lose(self.gone, why)

    async def _exit(self) -> None:
        await self._child.wait()

    async def _pump(self) -> None:
        lines = Lines(self._host.limits.line)
        feed = self.conversation.feed
        with suppress(OSError):
            while data := await self._child.stdout.read(_CHUNK):
                for found in lines.feed(data):
                    feed(found)
        # From here on it answers nobody; why is known a moment later.
        self._ended = True

    async def _epitaph(self) -> str:
        """Why stdout has ended. What the process wrote on stderr may hold secrets: not told."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await self._child.wait()
        code = self._child.returncode
        if code is None:
            return "the process closed its stdout"
        if code < 0:
            return f"the process was ended by signal {-code}"
        return f"the process exited with status {code}"
