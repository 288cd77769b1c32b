"""Opens legs to one server: which transport, which era, and what the last time taught.

Positive evidence makes a server modern; everything else means ``initialize``. The verdict is
kept, and forgotten when a server that was found does not answer in its era any more.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sidecar.config import ServerConfig
from sidecar.model import Era, RpcError, Unavailable
from sidecar.ports.proxy import ChildProxy
from sidecar.ports.secrets import Secrets
from sidecar.upstream import era as eras
from sidecar.upstream.faults import HttpStatus, StreamEnded, Unreachable
from sidecar.upstream.http import HttpClient
from sidecar.upstream.leg import SELF, Hello, Host, Leg
from sidecar.upstream.legacy_http import LegacyHttpLeg
from sidecar.upstream.modern_http import ModernHttpLeg
from sidecar.upstream.sse import SseLeg
from sidecar.upstream.stdio import StdioLeg

PROBE = 3.0
"""Seconds that ``server/discover`` gets before ``initialize`` is tried as well or instead."""

SILENCE = 5.0
"""Seconds after the probe that a silent process gets before a fresh one is started."""

STARTING = 60.0
"""Seconds that a process gets to start and shake hands: some are downloaded first."""

HANDSHAKE = 10.0
"""Seconds that a handshake over HTTP gets at least, however short ``timeout`` is."""

RETRIES = 3
"""Failures in a row after which the remembered era is doubted, whatever the reason."""

_Failure = (RpcError, HttpStatus, StreamEnded, eras.NotSpoken, Unavailable, TimeoutError)


class Opener:
    """Opens legs; whoever asked for one ends it. Every failure is an ``Unavailable``."""

    def __init__(
        self,
        host: Host,
        config: ServerConfig,
        secrets: Secrets,
        http: HttpClient | None,
        proxy: ChildProxy | None = None,
    ) -> None:
        self._host = host
        self._config = config
        self._secrets = secrets
        self._http = http
        self._proxy = proxy
        self._era: Era | None = None
        self._failures = 0

    @property
    def _known(self) -> Era | None:
        return Era(self._config.era) if self._config.era != "auto" else self._era

    async def open(self, isolation: str = "") -> Leg:
        """A leg in the era that the server speaks, or the configured one.

        Raises:
            Unavailable: with a reason that an operator can act on.
        """
        known = self._known
        try:
            leg = await self._open(known, isolation)
        except Unavailable as error:
            self._failed(error)
            raise
        except TimeoutError:
            silent = self._unavailable("no answer to the handshake in time")
            self._failed(silent)
            raise silent from None
        except (RpcError, HttpStatus, StreamEnded, eras.NotSpoken) as answer:
            # It speaks, but not as it did: look again next time.
            self._era = None
            raise self._explained(answer) from None
        self._era, self._failures = leg.hello.era, 0
        return leg

    async def open_legacy(self, isolation: str) -> LegacyHttpLeg | None:
        """A session with a server that is known to be modern, or ``None`` if it has none.

        Raises:
            Unavailable: the connection failed, which says nothing of its eras.
        """
        try:
            return await self._initialize_http(isolation, PROBE)
        except (RpcError, HttpStatus, StreamEnded, eras.NotSpoken, TimeoutError):
            return None

    # ------------------------------------------------------------------------------- inside

    async def _open(self, known: Era | None, isolation: str) -> Leg:
        http = self._http
        if http is None:
            return await self._open_stdio(known, isolation)
        http.refresh()
        if self._config.transport == "sse":
            return await self._open_sse(isolation)
        if known is Era.MODERN:
            return await self._discover_http(self._handshake)
        if known is Era.LEGACY:
            return await self._initialize_or_sse(http, isolation)
        return await self._probe_http(http, isolation)

    @property
    def _handshake(self) -> float:
        return max(self._config.timeout, HANDSHAKE)

    def _failed(self, error: Unavailable) -> None:
        self._failures += 1
        if self._failures >= RETRIES or (error.ran == "maybe" and not error.permanent):
            self._era = None

    # ----------------------------------------------------------------------------------- HTTP

    async def _probe_http(self, http: HttpClient, isolation: str) -> Leg:
        try:
            return await self._discover_http(min(PROBE, self._handshake))
        except Unreachable:
            raise  # Whoever cannot be reached cannot be asked in another way either.
        except _Failure as failure:
            if isinstance(failure, RpcError) and eras.of_error(failure) is Era.MODERN:
                # It refused this one, in the words of its era.
                return await self._discover_http(self._handshake)
        try:
            return await self._initialize_or_sse(http, isolation)
        except (RpcError, HttpStatus) as answer:
            # A slow server may have missed the probe and still be modern.
            error = answer.error if isinstance(answer, HttpStatus) else answer
            if error is None or eras.of_error(error) is not Era.MODERN:
                raise
        return await self._discover_http(self._handshake)

    async def _discover_http(self, timeout: float) -> ModernHttpLeg:
        assert self._http is not None
        leg = ModernHttpLeg(self._host, self._http)
        async with asyncio.timeout(timeout):
            leg.welcome(eras.of_discover(await leg.request("server/discover", {}, SELF)))
        return leg

    async def _initialize_http(self, isolation: str, timeout: float) -> LegacyHttpLeg:
        assert self._http is not None
        leg = LegacyHttpLeg(self._host, self._http, isolation, self._handshake)
        try:
            async with asyncio.timeout(timeout):
                await leg.open()
        except BaseException:
            await leg.end()
            raise
        return leg

    async def _initialize_or_sse(self, http: HttpClient, isolation: str) -> Leg:
        try:
            return await self._initialize_http(isolation, self._handshake)
        except HttpStatus as status:
            # 2025-11-25, transports, backwards compatibility: an old server refuses the POST.
            if status.status not in (400, 404, 405) or (
                status.error is not None and eras.of_error(status.error) is Era.MODERN
            ):
                raise
            refusal = status
        try:
            return await self._open_sse(isolation)
        except _Failure:
            raise refusal from None

    async def _open_sse(self, isolation: str) -> SseLeg:
        assert self._http is not None
        leg = SseLeg(self._host, self._http, isolation)
        try:
            async with asyncio.timeout(self._handshake):
                await leg.connect()
                hello = eras.of_initialize(await leg.request("initialize", eras.INITIALIZE, SELF))
                await leg.conversation.tell("notifications/initialized")
                leg.welcome(hello)
        except BaseException:
            await leg.end()
            raise
        return leg

    # ---------------------------------------------------------------------------------- stdio

    async def _open_stdio(self, known: Era | None, isolation: str) -> StdioLeg:
        if known is None:
            leg = await self._probe_stdio(isolation)
            if leg is not None:
                return leg
        # Either its era is known, or a fresh process is not to be confused by a probe.
        leg = await self._start(isolation)
        try:
            async with asyncio.timeout(max(self._config.timeout, STARTING)):
                if known is Era.MODERN:
                    leg.welcome(await _discover(leg))
                else:
                    leg.welcome(await self._initialize_or_discover(leg, known))
        except BaseException:
            await leg.end()
            raise
        return leg

    async def _start(self, isolation: str) -> StdioLeg:
        return await StdioLeg.start(self._host, self._config, self._secrets, isolation, self._proxy)

    async def _initialize_or_discover(self, leg: StdioLeg, known: Era | None) -> Hello:
        try:
            return await _initialize(leg)
        except RpcError as error:
            if known is Era.LEGACY or eras.of_error(error) is not Era.MODERN:
                raise
        return await _discover(leg)

    async def _probe_stdio(self, isolation: str) -> StdioLeg | None:
        """A leg whose first words were the probe; ``None`` if a fresh process must be tried."""
        leg = await self._start(isolation)
        try:
            hello = await self._probed(leg)
        except BaseException as failure:
            exited = leg.gone.done()
            await leg.end()
            # Some servers exit on anything before initialize: go-sdk#1177.
            if exited and isinstance(failure, Unavailable):
                return None
            raise
        if hello is None:
            await leg.end()
            return None
        leg.welcome(hello)
        return leg

    async def _probed(self, leg: StdioLeg) -> Hello | None:
        """What the server says of itself, ``None`` when it stays silent."""
        discover = asyncio.create_task(_discover(leg), name=f"{self._host.name}: probe")
        initialize: asyncio.Task[Hello] | None = None
        try:
            await asyncio.wait({discover}, timeout=PROBE)
            if discover.done():
                try:
                    return discover.result()
                except eras.NotSpoken:
                    modern = False
                except RpcError as error:
                    modern = eras.of_error(error) is Era.MODERN
                async with asyncio.timeout(max(self._config.timeout, STARTING)):
                    if modern:
                        # It refused this one, in the words of its era.
                        return await _discover(leg)
                    return await self._initialize_or_discover(leg, None)
            # Silent: either it waits for initialize, or it has not started yet.
            initialize = asyncio.create_task(
                self._initialize_or_discover(leg, None), name=f"{self._host.name}: initialize"
            )
            return await _first_hello(discover, initialize, SILENCE)
        finally:
            for task in (discover, initialize):
                if task is not None:
                    task.cancel()
                    await asyncio.wait({task})
                    if not task.cancelled():
                        task.exception()

    # ------------------------------------------------------------------------------- failures

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(self._config.name, why, ran="no")

    def _explained(self, answer: Exception) -> Unavailable:
        if isinstance(answer, HttpStatus):
            if answer.error is not None:
                return self._unavailable(
                    f"refuses the handshake (HTTP {answer.status}, error {answer.error.code})"
                )
            assert self._http is not None
            return self._http.refused(answer)
        if isinstance(answer, RpcError):
            return self._unavailable(f"refuses the handshake (error {answer.code})")
        return self._unavailable(str(answer))


async def _discover(leg: StdioLeg) -> Hello:
    leg.speak(Era.MODERN)
    return eras.of_discover(await leg.request("server/discover", {}, SELF))


async def _initialize(leg: StdioLeg) -> Hello:
    leg.speak(Era.LEGACY)
    hello = eras.of_initialize(await leg.request("initialize", eras.INITIALIZE, SELF))
    await leg.conversation.tell("notifications/initialized")
    return hello


async def _first_hello(
    discover: asyncio.Task[Hello], initialize: asyncio.Task[Hello], timeout: float
) -> Hello | None:
    """The first of two handshakes that succeeds, ``None`` when neither ends in time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    waiting = {discover, initialize}
    failure: BaseException | None = None
    while waiting:
        done, waiting = await asyncio.wait(
            waiting, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            return None
        for task in done:
            with suppress(RpcError, eras.NotSpoken):
                return task.result()
            failure = task.exception()
    assert failure is not None
    raise failure
