"""Events of the bus as measurements: on the path of a call, a few dictionary look-ups."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from sidecar.events import (
    AttemptFinished,
    Bus,
    CallFinished,
    DialDecided,
    LegChanged,
    ParkedChanged,
    RequestFinished,
    SessionClosed,
    SessionOpened,
    ToolsChanged,
)
from sidecar.model import State
from sidecar.semconv import GenAi, Key, Mcp, Metric
from sidecar.telemetry.metrics import (
    LONG,
    OTHER,
    Buckets,
    Known,
    Registry,
    Values,
    by,
    dropped,
    single,
)

K = TypeVar("K")
V = TypeVar("V")

MOST_NAMES: Final = 1000
"""Different tools, prompts, servers and rules that are told apart."""
MOST_TIMED: Final = 10_000
"""Sessions and parked calls whose beginning is remembered at once."""

MOST_FOUND: Final = 4096
"""Series that are found at once."""

_TOOLS: Final = frozenset(("mcp", "acp"))
_NAMED: Final = _TOOLS | {"prompt"}
"""Kinds of calls whose target is told."""
_CallKey: TypeAlias = tuple[str, str, str, str, str, str, str, str]
_AttemptKey: TypeAlias = tuple[str, str, str, str, str, str]
_OPERATION: Final = (
    Mcp.METHOD,
    GenAi.TOOL,
    GenAi.PROMPT,
    GenAi.OPERATION,
    Mcp.ERROR_TYPE,
    Mcp.STATUS_CODE,
    Key.SERVER,
)


class Began:
    """When things began that end later, bounded: the oldest are forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._at)

    def begin(self, id: str) -> None:
        """It begins now, unless it has."""
        if id not in self._at:
            if len(self._at) >= MOST_TIMED:
                self._at.pop(next(iter(self._at)))
            self._at[id] = self._clock()

    def end(self, id: str) -> float | None:
        """The seconds that it lasted; ``None`` for what nobody saw begin."""
        at = self._at.pop(id, None)
        return None if at is None else self._clock() - at


class Meters:
    """``close`` stops listening. ``clock`` is any that counts seconds."""

    def __init__(
        self,
        registry: Registry,
        bus: Bus,
        *,
        exemplars: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``exemplars``: whether measurements remember traces in which they were taken."""
        self._exemplars = exemplars
        self._tool = Known(MOST_NAMES)
        self._prompt = Known(MOST_NAMES)
        self._server = Known(MOST_NAMES)
        self._rule = Known(MOST_NAMES)
        self._method = Known(100)
        self._error = Known(200)
        self._operations = registry.histogram(
            Metric.SERVER_OPERATION, "s", "How long requests of agents took.", _OPERATION
        )
        self._attempts = registry.histogram(
            Metric.CLIENT_OPERATION,
            "s",
            "How long servers took to answer, each attempt by itself.",
            (*_OPERATION, Mcp.TRANSPORT),
        )
        self._sessions = registry.histogram(
            Metric.SERVER_SESSION, "s", "How long sessions of agents lasted.", bounds=LONG
        )
        self._legs = registry.histogram(
            Metric.CLIENT_SESSION,
            "s",
            "How long connections to servers lasted.",
            (Key.SERVER, Mcp.ERROR_TYPE),
            bounds=LONG,
        )
        self._calls = registry.counter(
            Metric.CALLS,
            "{call}",
            "Calls by what policy said and how they ended.",
            (Key.DECISION, Key.RULE, Key.OUTCOME, Key.SERVER),
        )
        self._waits = registry.histogram(
            Metric.APPROVAL_WAIT,
            "s",
            "How long calls waited for a person, by what became of it.",
            (Key.APPROVAL_STATE,),
            bounds=LONG,
        )
        self._dials = registry.counter(
            Metric.EGRESS,
            "{dial}",
            "Dials by what policy said.",
            (Key.DECISION, Key.RULE, Key.EGRESS_REASON),
        )
        self._changes = registry.counter(
            Metric.LEG_CHANGES,
            "{change}",
            "Changes of the state of connections to servers.",
            (Key.SERVER, Key.STATE),
        )
        self._open = Began(clock)
        self._up = Began(clock)
        self._waiting = Began(clock)
        self._opened = 0
        self._tools: dict[str, int] = {}
        registry.gauge(
            Metric.SESSIONS,
            "{session}",
            "Sessions of agents that are open.",
            ask=lambda: single(self._opened),
        )
        registry.gauge(
            Metric.TOOLS,
            "{tool}",
            "Tools of each server, 0 while it is down.",
            (Key.SERVER,),
            ask=lambda: by(self._tools),
        )
        # The series of what was told before: finding them is most of the work.
        self._of_calls: dict[_CallKey, tuple[Buckets, Values]] = {}
        self._of_attempts: dict[_AttemptKey, Buckets] = {}
        self._stops = [
            bus.listen(CallFinished, self._call),
            bus.listen(AttemptFinished, self._attempt),
            bus.listen(RequestFinished, self._request),
            bus.listen(DialDecided, self._dial),
            bus.listen(SessionOpened, self._session_opened),
            bus.listen(SessionClosed, self._session_closed),
            bus.listen(LegChanged, self._leg),
            bus.listen(ToolsChanged, self._tools_changed),
            bus.listen(ParkedChanged, self._parked),
        ]

    def close(self) -> None:
        """Listen no more. Idempotent."""
        while self._stops:
            self._stops.pop()()

    def forget(self, server: str) -> None:
        """A server is gone for good: nothing is told of it any more, and its names make room.

        Servers come and go at run time; names that are never freed would leave later ones
        without."""
        self._tools.pop(server, None)
        self._up.end(server)
        self._of_calls.clear()
        self._of_attempts.clear()
        at = _OPERATION.index(Key.SERVER)
        for values in (
            *dropped(self._operations.series, at, server),
            *dropped(self._attempts.series, at, server),
        ):
            self._tool.forget(values[_OPERATION.index(GenAi.TOOL)])
            self._prompt.forget(values[_OPERATION.index(GenAi.PROMPT)])
        dropped(self._calls.series, 3, server)
        dropped(self._changes.series, 0, server)
        dropped(self._legs.series, 0, server)
        self._server.forget(server)

    # --------------------------------------------------------------- on the path of a call

    def _call(self, event: CallFinished) -> None:
        kind = event.kind
        key = (
            event.server,
            event.target if kind in _NAMED else "",
            event.method,
            kind,
            event.error,
            event.decision,
            event.rule,
            event.outcome,
        )
        found = self._of_calls.get(key)
        if found is None:
            server = self._server(event.server)
            about = self._named(event.method, kind, event.target)
            found = (
                self._operations.begin((*about, *self._failed(event.error), server)),
                self._calls.begin((event.decision, self._rule(event.rule), event.outcome, server)),
            )
            _keep(self._of_calls, key, found)
        series, count = found
        self._operations.measure(
            series, event.seconds, event.trace.traceparent if self._exemplars else ""
        )
        self._calls.series[count] += 1

    def _attempt(self, event: AttemptFinished) -> None:
        kind = event.kind
        key = (
            event.server,
            event.target if kind in _NAMED else "",
            event.method,
            kind,
            event.error,
            event.transport,
        )
        series = self._of_attempts.get(key)
        if series is None:
            series = self._attempts.begin(
                (
                    *self._named(event.method, kind, event.target),
                    *self._failed(event.error),
                    self._server(event.server),
                    "pipe" if event.transport == "stdio" else "tcp",
                )
            )
            _keep(self._of_attempts, key, series)
        self._attempts.measure(
            series, event.seconds, event.trace.traceparent if self._exemplars else ""
        )

    def _named(self, method: str, kind: str, target: str) -> tuple[str, str, str, str]:
        if kind in _TOOLS:
            return (method, self._tool(target), "", GenAi.EXECUTE_TOOL)
        if kind == "prompt":
            return (method, "", self._prompt(target), "")
        # A URI is no name: there are too many of them.
        return (method, "", "", "")

    def _failed(self, error: str) -> tuple[str, str]:
        """``error.type``, and the code where it is one of JSON-RPC's."""
        if not error:
            return ("", "")
        error = self._error(error)
        return (error, error if error[0] == "-" else "")

    # ----------------------------------------------------------------------- beside calls

    def _request(self, event: RequestFinished) -> None:
        values = (self._method(event.method), "", "", "", *self._failed(event.error), "")
        trace = event.trace.traceparent if self._exemplars else ""
        self._operations.record(values, event.seconds, trace)

    def _dial(self, event: DialDecided) -> None:
        self._dials.add((event.decision, self._rule(event.rule), event.reason))

    def _session_opened(self, event: SessionOpened) -> None:
        self._opened += 1
        self._open.begin(event.session)

    def _session_closed(self, event: SessionClosed) -> None:
        self._opened -= 1
        seconds = self._open.end(event.session)
        if seconds is not None:
            self._sessions.record((), seconds)

    def _leg(self, event: LegChanged) -> None:
        server = self._server(event.server)
        self._changes.add((server, event.state.value))
        if event.state is State.READY:
            self._up.begin(event.server)
            return
        seconds = self._up.end(event.server)
        if seconds is not None:
            self._legs.record((server, "unavailable" if event.error else ""), seconds)

    def _tools_changed(self, event: ToolsChanged) -> None:
        server = self._server(event.server)
        if server != OTHER:
            self._tools[server] = event.count

    def _parked(self, event: ParkedChanged) -> None:
        if event.state == "waiting":
            self._waiting.begin(event.call)
        elif event.before in ("waiting", ""):
            seconds = self._waiting.end(event.call)
            if seconds is not None:
                self._waits.record((event.state,), seconds)


def _keep(found: dict[K, V], key: K, value: V) -> None:
    """Errors and rules may be many: what has been found is then found anew."""
    if len(found) >= MOST_FOUND:
        found.clear()
    found[key] = value
