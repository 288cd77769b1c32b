"""Serves one editor that speaks ACP, whatever carries its lines.

A prompt is a call of the harness's tool, through the gateway like any other: what is decided,
waited for, counted and traced of one is of the other. What differs is that an editor hears all
that the agent says, and waits for as long as it takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Final, TypeAlias, cast

from sidecar.config.types import Limits
from sidecar.downstream.acp import (
    NOT_FOUND,
    Begin,
    Editor,
    Listing,
    Opened,
    Prompt,
    Replied,
    Say,
    Step,
    Stop,
    work_of,
)
from sidecar.downstream.acp_answer import Ended, read
from sidecar.downstream.acp_outbox import Outbox
from sidecar.downstream.acp_rows import key, listed, shown
from sidecar.downstream.acp_updates import at_work, message, waiting, without_ours
from sidecar.downstream.auth import Grant
from sidecar.downstream.desk import fault
from sidecar.downstream.pipes import Write
from sidecar.downstream.running import Answer, Crowd, Running
from sidecar.events import Bus, ParkedChanged
from sidecar.gateway import Gateway
from sidecar.harness.run_editor import ANSWERED, ASKED, PERMISSION, UPDATE, answer_of, question
from sidecar.mcp import errors, rounds
from sidecar.model import (
    SIDECAR_META,
    Caller,
    Era,
    Fields,
    JsonObject,
    RequestId,
    RpcError,
    Unavailable,
    Unroutable,
)
from sidecar.ports.agents import EditorSession, EditorSessions, NoSession
from sidecar.wire import jsonrpc
from sidecar.wire.ndjson import Oversize

__all__ = ["EditorServer"]

Work: TypeAlias = Coroutine[object, object, Answer]

log = logging.getLogger("sidecar.downstream")

MOST_BYTES: Final = 32 << 20
"""Bytes that may wait for an editor that reads slowly; with more it is cut off, since nothing of
what an agent says can be left out."""
SILENT: Final = 60.0
"""Seconds that an editor has to say ``initialize``."""
NOTICE: Final = 0.3
"""Seconds in which a question may be put to the editor before it is told that one waits."""
AGAIN: Final = 1.0
"""Seconds until a call that was answered before its end is made again."""
FAREWELL: Final = 5.0


class EditorServer:
    """One connection. ``serve`` it; ``end`` ends that from elsewhere. ``draining``: nothing new is
    begun. ``why`` says why it was ended."""

    def __init__(
        self,
        gateway: Gateway,
        sessions: EditorSessions,
        bus: Bus,
        grant: Grant,
        harness: str,
        *,
        name: str,
        version: str,
        limits: Limits,
        crowd: Crowd,
    ) -> None:
        """``crowd`` has what runs for others too. ``name`` and ``version`` are our own."""
        self.grant = grant
        self._gateway = gateway
        self._sessions = sessions
        self._bus = bus
        self._harness = harness
        self._crowd = crowd
        self._editor = Editor(limits, name=name, version=version)
        self._running: dict[RequestId, _Working] = {}
        self._replies: dict[int, asyncio.Future[Fields]] = {}
        self._questions: dict[str, tuple[Opened, str]] = {}
        self._asking: set[str] = set()
        self._calls: dict[str, Opened] = {}
        self._out = Outbox(MOST_BYTES)
        self._over = asyncio.Event()
        self.draining = False
        self.why = ""
        self._opened_at = time.time()
        self._used = self._opened_at

    # ------------------------------------------------------------------------- its life

    async def serve(self, lines: AsyncIterator[bytes | Oversize], write: Write) -> None:
        """Serve until the lines end, nobody reads any more, or ``end``. What runs for this
        editor alone is cancelled then."""
        unlisten = self._bus.listen(ParkedChanged, self._parked)
        tasks = [
            asyncio.create_task(self._read_all(lines)),
            asyncio.create_task(self._out.write_all(write)),
            asyncio.create_task(self._over.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unlisten()
            self._over.set()
            # What was ended with a reason is told it.
            told = [each.task for each in self._running.values() if each.error is not None]
            if told:
                await asyncio.wait(told, timeout=FAREWELL)
            self._out.finish()
            # The writer gets to say what is owed, as far as somebody reads.
            await asyncio.wait({tasks[1]}, timeout=FAREWELL if self.why else 0.5)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError):
                    log.error("an editor could not be served: %s", fault(outcome))
            await self._hang_up()

    async def _hang_up(self) -> None:
        """Nobody waits any more for what runs."""
        left = tuple(self._running.values())
        for working in left:
            working.leave()
        if left:
            await asyncio.wait([working.task for working in left], timeout=FAREWELL)

    def end(self, why: str) -> None:
        """End the connection; ``why`` is told to the other end."""
        if not self._over.is_set():
            self.why = why
            self._over.set()

    def rows(self) -> list[JsonObject]:
        """Its sessions, as the operator is told of every session (``AgentListener.sessions``)."""
        return [
            shown(
                opened,
                harness=self._harness,
                principal=self.grant.principal,
                client=self._editor.client,
                opened_at=self._opened_at,
                idle=time.time() - self._used,
            )
            for opened in self._editor.sessions.values()
        ]

    async def _read_all(self, lines: AsyncIterator[bytes | Oversize]) -> None:
        late = asyncio.get_running_loop().call_later(SILENT, self._silent)
        try:
            async for line in lines:
                self._used = time.time()
                for step in self._editor.take(line):
                    self._do(step)
        finally:
            late.cancel()

    def _silent(self) -> None:
        if not self._editor.begun:
            self.end(f"no initialize within {SILENT:.0f} s")

    def push(self, message: bytes) -> None:
        """Send, as soon as there is room. Never blocks."""
        if self._over.is_set() and not self.why:
            return
        if not self._out.push(message):
            log.warning("an editor reads too slowly; it is cut off")
            self.end("the editor reads too slowly")

    # -------------------------------------------------------------------- what is asked for

    def _do(self, step: Step) -> None:
        match step:
            case Say():
                self.push(step.message)
            case Begin() | Listing():
                work = self._begin(step) if isinstance(step, Begin) else self._list(step)
                self._start(step.id, work)
            case Prompt():
                self._start(step.id, self._prompt(step), step)
            case Stop():
                working = self._running.get(step.id)
                if working is not None:
                    working.cancel()
            case Replied():
                reply = self._replies.get(step.id)
                if reply is not None and not reply.done():
                    if isinstance(step.result, RpcError):
                        reply.set_exception(step.result)
                    else:
                        reply.set_result(step.result)

    def _start(self, id_: RequestId, work: Work, prompt: Prompt | None = None) -> None:
        if self._crowd.full or self.draining:
            work.close()
            why = "it is shutting down" if self.draining else "it has too much to do"
            busy = Unavailable("sidecar", f"{why}; try again", ran="no")
            self.push(self._editor.failed(id_, errors.of(busy)))
            return
        working = self._running[id_] = _Working(self, self._crowd, id_, prompt)
        working.start(self._answering(id_, work))

    async def _answering(self, id_: RequestId, work: Work) -> Answer:
        try:
            return await work
        except NoSession as none:
            code = NOT_FOUND if none.missing else jsonrpc.INVALID_PARAMS
            return Answer(self._editor.failed(id_, RpcError(code, str(none))))
        except (RpcError, Unavailable, Unroutable) as failure:
            return Answer(self._editor.failed(id_, errors.of(failure)))
        except Exception as failure:  # noqa: BLE001  one request fails, the editor stays
            log.error("a request of an editor failed: %s", fault(failure))
            return Answer(self._editor.failed(id_, errors.internal()))

    def finished(self, working: _Working) -> None:
        """One of its requests is over: its answer goes out."""
        self._running.pop(working.id, None)
        if working.left:
            return
        if working.cancelled and working.prompt is not None:
            self.push(self._editor.over(working.prompt, "cancelled", {}))
        elif working.task.cancelled():
            error = working.error or errors.internal("the request was ended")
            self.push(self._editor.failed(working.id, error))
        else:
            self.push(working.task.result().body)

    async def _begin(self, step: Begin) -> Answer:
        principal = self.grant.principal
        about = (
            await self._sessions.begin(self._harness, principal, step.cwd)
            if step.how == "new"
            else await self._found(step)
        )
        *told, answer = self._editor.opened(step, about)
        for line in told:
            self.push(line)
        return Answer(answer)

    async def _found(self, step: Begin) -> EditorSession:
        try:
            return await self._sessions.find(
                self._harness, self.grant.principal, step.cwd, step.session
            )
        except NoSession as none:
            opened = self._editor.sessions.get(step.session)
            if none.missing and opened is not None:
                # One without a prompt so far.
                return opened.about
            raise

    async def _list(self, step: Listing) -> Answer:
        found = await self._sessions.listing(self._harness, self.grant.principal, step.cwd)
        return Answer(self._editor.listed(step, [listed(about) for about in found]))

    # ------------------------------------------------------------------------------ prompts

    async def _prompt(self, step: Prompt) -> Answer:
        opened, about = step.opened, step.opened.about
        caller = Caller(
            self.grant.principal,
            era=Era.LEGACY,
            session=key(self._harness, self.grant.principal, about),
            client=self._editor.client,
            capabilities={"elicitation": {}},
            trace=step.trace,
            notify=lambda method, params: self._heard(opened, method, params),
            ask=lambda method, params: self._ask(opened, method, params),
            request=step.id,
            updates=True,
        )
        if not opened.greeted:
            opened.greeted = True
            self.push(self._editor.notice(opened, at_work(about, opened.ignored)))
        arguments: JsonObject = {"task": step.task, "checkout": about.checkout, "work": about.work}
        params: JsonObject = {"name": self._harness, "arguments": arguments}
        self._calls[caller.session] = opened
        try:
            ended = await self._called(params, caller)
        finally:
            self._calls.pop(caller.session, None)
            for call in [call for call, (of, _) in self._questions.items() if of is opened]:
                del self._questions[call]
        return self._told(step, ended)

    async def _called(self, params: JsonObject, caller: Caller) -> Ended:
        while True:
            ended = read(await self._gateway.request("tools/call", params, caller))
            if not ended.goes_on:
                return ended
            if self._over.is_set() or self.draining:
                raise Unavailable(self._harness, "the sidecar is ending", ran="maybe")
            await asyncio.sleep(AGAIN)

    def _told(self, step: Prompt, ended: Ended) -> Answer:
        opened = step.opened
        if ended.said and not opened.teller.spoke:
            # What rules take something out of is not told as it comes.
            self.push(self._editor.notice(opened, message(ended.said)))
        notes: JsonObject = {SIDECAR_META + "work": work_of(opened.about), **ended.notes}
        if ended.reason is None:
            error = RpcError(jsonrpc.INTERNAL_ERROR, ended.error, notes)
            return Answer(self._editor.failed(step.id, error), error.code)
        if ended.error:
            self.push(self._editor.notice(opened, message(f"\n\n{ended.error}\n\n")))
        return Answer(self._editor.over(step, ended.reason, notes))

    def _heard(self, opened: Opened, method: str, params: JsonObject) -> None:
        """What comes while a prompt runs. Never blocks."""
        if method == UPDATE:
            for line in self._editor.update(opened, cast("JsonObject", params["update"])):
                self.push(line)
        elif method == ASKED:
            self._questions[str(params["id"])] = opened, str(params["tool"])
        elif method == ANSWERED:
            self._questions.pop(str(params["id"]), None)

    def _parked(self, event: ParkedChanged) -> None:
        if event.state != "waiting" or event.before:
            return
        if event.call not in self._questions and event.target == self._harness:
            opened = self._calls.get(event.session)
            if opened is not None:
                self._questions[event.call] = opened, event.target
        if event.call in self._questions:
            loop = asyncio.get_running_loop()
            loop.call_later(NOTICE, self._notice, event.call)

    def _notice(self, call: str) -> None:
        found = self._questions.get(call)
        if found is not None and call not in self._asking:
            opened, tool = found
            self.push(self._editor.notice(opened, waiting(call, tool)))

    async def _ask(self, opened: Opened, method: str, params: JsonObject) -> Fields:
        """Ask whoever sits at the editor. Raises RpcError: the editor's, or it owes too many."""
        if method == rounds.ELICIT:
            # The call of the harness itself waits: there is no tool call of the agent's yet.
            none: JsonObject = {
                "toolCallId": f"sidecar-{self._harness}",
                "title": f"Have {self._harness} work on this",
                "kind": "other",
                "status": "pending",
            }
            asked = question(none, params.get("message"), "")
            return answer_of(await self._put(opened, asked, self._own(opened)))
        if method == PERMISSION:
            meta = cast("JsonObject", params.get("_meta") or {})
            tool_call = without_ours(cast("JsonObject", params["toolCall"]))
            asked = {**params, "toolCall": tool_call}
            return await self._put(opened, asked, str(meta.get(SIDECAR_META + "call")))
        raise errors.method_not_found(method)

    def _own(self, opened: Opened) -> str:
        """The id of the call of the harness that waits, as far as it is known."""
        for call, (of, tool) in self._questions.items():
            if of is opened and tool == self._harness:
                return call
        return ""

    async def _put(self, opened: Opened, params: JsonObject, call: str) -> Fields:
        id_, line = self._editor.ask(opened, params)
        reply: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        self._replies[id_] = reply
        self._asking.add(call)
        try:
            self.push(line)
            return await reply
        finally:
            del self._replies[id_]
            self._asking.discard(call)
            withdrawn = self._editor.withdraw(id_)
            if withdrawn is not None:
                self.push(withdrawn)


class _Working(Running):
    """A request that is being answered. ``left``: there is nobody to answer any more."""

    __slots__ = ("_server", "id", "left", "prompt")

    def __init__(
        self, server: EditorServer, crowd: Crowd, id_: RequestId, prompt: Prompt | None
    ) -> None:
        super().__init__(crowd, server.grant, id_)
        self._server = server
        self.id = id_
        self.prompt = prompt
        self.left = False

    def leave(self) -> None:
        """End it without a word."""
        self.left = True
        self.task.cancel()

    def finished(self) -> None:
        self._server.finished(self)
