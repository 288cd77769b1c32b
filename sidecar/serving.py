"""Serves until told to stop: signals, reloads, standard input."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sidecar.app import App, Ready, StartError
from sidecar.config import Config
from sidecar.downstream.join import run_joined
from sidecar.supervisor import SECOND_INTERRUPT
from sidecar.watch import FileWatch

log = logging.getLogger("sidecar")

JOIN_WAIT = 1.0
"""Seconds to find out whether a sidecar is there to join."""
COLLECT_AFTER = 4000
"""New objects after which the collector looks for cycles among them."""


async def serve(
    config: Config,
    read: Callable[[], Config | None],
    *,
    files: Sequence[Path] = (),
    on_ready: Callable[[Ready], None] = print,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain and end; a second signal ends at once.

    ``read`` reads the configuration again, on SIGHUP or when ``files`` change, and returns
    ``None`` when it is faulty: what is in force stays in force.
    """
    stop, hurry, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    loop = asyncio.get_running_loop()
    asked = float("inf")

    def on_stop() -> None:
        nonlocal asked
        # Sent to the whole process group it comes twice: to us, and through the supervisor.
        if loop.time() >= asked + SECOND_INTERRUPT:
            hurry.set()
        asked = min(asked, loop.time())
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop)
    loop.add_signal_handler(signal.SIGHUP, again.set)
    app = App(config)
    on_ready(await app.start())
    sys.stdout.flush()
    # What start-up made lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    # Looked for every 700 objects, as is usual, cycles cost each call under load 8 % more: what
    # is in the middle of running is looked at over and over. A call leaves next to none.
    gc.set_threshold(COLLECT_AFTER, 10, 10)
    watching = asyncio.create_task(_reload_on(app, read, again, files))
    try:
        await stop.wait()
        log.info("draining: what runs gets %g s to end", config.drain_grace)
        await _first(app.drain(), hurry.wait())
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await app.close()
    return 0


async def _reload_on(
    app: App, read: Callable[[], Config | None], again: asyncio.Event, files: Sequence[Path]
) -> None:
    """Reload for as long as the process serves; nothing that a file holds ends this.

    Files of tokens are watched as well: whoever rotates one touches nothing else.
    """
    tokens = app.token_files()
    watch = FileWatch([*files, *tokens])
    while True:
        if files:
            await _first(watch.changed(), again.wait())
        else:
            await again.wait()
        again.clear()
        # Made before the files are read: what is written after that is a change of its own,
        # and what a signal told of is none any more.
        watch = FileWatch([*files, *tokens])
        config = await asyncio.to_thread(read)
        if config is None:
            log.error("the configuration is faulty; the one in force stays in force")
            continue
        try:
            log.info("reloaded: %s", await app.reload(config))
        except StartError as error:
            log.error("not reloaded: %s; the configuration in force stays in force", error)
        if tokens != (tokens := app.token_files()):
            # Other files, and they may have changed since they were read: look again soon.
            watch = FileWatch([*files, *tokens])
            again.set()


async def _first(*waits: Coroutine[object, object, object]) -> None:
    """Return when one of them is done; the others are cancelled and awaited."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve_stdio(
    config: Config,
    *,
    server: str | None,
    join: tuple[str, dict[str, str]] | None,
    socket: str | None = None,
) -> int:
    """Serve standard input until it ends.

    ``join`` is the base URL of a sidecar that may run, and the headers that authenticate there;
    ``socket`` is the path of the unix socket behind it, ``None`` for TCP. When nobody listens
    there, this process serves alone, without listeners.
    """
    if join is not None and await _listening(join[0], socket):
        url = f"{join[0]}/mcp" + (f"/{server}" if server is not None else "")
        log.info("joined the sidecar at %s", join[0] if socket is None else f"unix:{socket}")
        await run_joined(url, join[1], socket)
        return 0
    from sidecar.downstream.stdio import StdioServer

    return await _alone(config, lambda app: StdioServer(app.gateway, config, server=server).run())


async def serve_acp(
    config: Config,
    harness: str,
    *,
    join: tuple[str, dict[str, str]] | None,
    socket: str | None = None,
) -> int:
    """Serve the editor at standard input until that ends. As ``serve_stdio``.

    Raises:
        StartError: there is no such harness, where this process serves alone; or the sidecar
            that is there cannot be joined, or has gone.
    """
    from sidecar.downstream import acp_join

    if join is not None and await _listening(join[0], socket):
        log.info("joined the sidecar at %s", join[0] if socket is None else f"unix:{socket}")
        try:
            await acp_join.run_joined(
                join[0], harness, join[1], limit=config.limits.line, socket=socket
            )
        except acp_join.JoinError as error:
            raise StartError(str(error)) from error
        return 0
    if harness not in config.harnesses:
        there = ", ".join(config.harnesses) or "none"
        raise StartError(f"there is no harness {harness!r} in `harnesses`; there are: {there}", 2)
    from sidecar.downstream.acp_stdio import run_alone

    return await _alone(
        config, lambda app: run_alone(app.gateway, app.agents.editors, app.bus, config, harness)
    )


async def _alone(config: Config, served: Callable[[App], Coroutine[object, object, object]]) -> int:
    """Serve standard input until it ends or we are told to, without listeners but for people."""
    app = App(config)
    await app.start(listen=False)
    await app.listen_to_people()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await _first(served(app), stop.wait())
    finally:
        await app.close()
    return 0


async def _listening(base: str, socket: str | None) -> bool:
    """Whether something accepts connections there."""
    url = urlsplit(base)
    try:
        async with asyncio.timeout(JOIN_WAIT):
            if socket is not None:
                _, writer = await asyncio.open_unix_connection(socket)
            else:
                port = url.port or (443 if url.scheme == "https" else 80)
                _, writer = await asyncio.open_connection(url.hostname, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
