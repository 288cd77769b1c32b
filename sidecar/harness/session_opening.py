"""How a session is opened: initialize, a session, and the mode in which the agent asks.

A generator of steps: it yields what to do and is sent what came of it, so that it waits for
nothing itself. Anything that goes otherwise than the profile promises raises ``OpenError``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from sidecar.harness import session_modes as modes
from sidecar.harness.profiles import Profile
from sidecar.harness.protocol import AUTH_REQUIRED
from sidecar.harness.session import PROTOCOL, Session
from sidecar.model import JsonObject, RpcError

How = Literal["new", "resumed", "loaded"]
OpenReason = Literal["protocol", "auth", "mode", "mcp"]

CLIENT: JsonObject = {"name": "sidecar", "title": "Sidecar"}


class OpenError(Exception):
    """The agent cannot be used as it is. Says what to do."""

    def __init__(self, reason: OpenReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request. Sent back: its result, or the RpcError that it was answered with."""

    method: str
    params: JsonObject


@dataclass(frozen=True, slots=True)
class AwaitMode:
    """Wait until the agent has said its mode more often than ``told``, for a moment."""

    told: int


Step: TypeAlias = Ask | AwaitMode
Came: TypeAlias = JsonObject | RpcError | None


@dataclass(frozen=True, slots=True)
class Agent:
    """What an agent says of itself."""

    name: str
    version: str
    capabilities: JsonObject

    def can(self, *path: str) -> bool:
        """Whether a capability is there; ``{}`` and ``true`` mean that it is."""
        value: object = self.capabilities
        for key in path:
            if not isinstance(value, dict):
                return False
            value = cast("JsonObject", value).get(key)
        return value is not None and value is not False


@dataclass(frozen=True, slots=True)
class Opened:
    """An open session. ``lost`` says why an earlier one was not taken up, where one was asked
    for; ``mode`` is what the agent told, empty when it has no modes."""

    session_id: str
    how: How
    mode: str = ""
    lost: str = ""


def initializing(version: str) -> Generator[Step, Came, Agent]:
    """Greet the agent."""
    params: JsonObject = {
        "protocolVersion": PROTOCOL,
        # No files and no terminals: it uses its own, inside of what the system lets it do.
        "clientCapabilities": {},
        "clientInfo": {**CLIENT, "version": version},
    }
    result = yield Ask("initialize", params)
    if isinstance(result, RpcError):
        raise OpenError("protocol", f"it refused initialize: {said(result)}")
    assert result is not None
    spoken = result.get("protocolVersion")
    if spoken != PROTOCOL or isinstance(spoken, bool):
        told = spoken if isinstance(spoken, int) else "none"
        raise OpenError("protocol", f"it speaks version {told} of ACP, and 1 is needed")
    info = result.get("agentInfo")
    about = cast("JsonObject", info) if isinstance(info, dict) else {}
    can = result.get("agentCapabilities")
    return Agent(
        name=_word(about.get("name")),
        version=_word(about.get("version")),
        capabilities=cast("JsonObject", can) if isinstance(can, dict) else {},
    )


def opening(
    session: Session,
    profile: Profile,
    agent: Agent,
    *,
    cwd: str,
    mcp_servers: Sequence[JsonObject],
    earlier: str | None,
    login: str | None,
) -> Generator[Step, Came, Opened]:
    """Open a session, ``earlier`` again where that can be done, and have it ask.

    ``login`` is the way to log in that is tried once if the agent wants one.
    """
    for server in mcp_servers:
        kind = server.get("type")
        if isinstance(kind, str) and kind != "stdio" and not agent.can("mcpCapabilities", kind):
            raise OpenError("mcp", f"it cannot use MCP servers over {kind}; leave `mcp:` out")
    params: JsonObject = {"cwd": cwd, "mcpServers": list(mcp_servers)}
    if profile.session_meta:
        params["_meta"] = profile.session_meta
    lost = ""
    if earlier is not None:
        lost = "it cannot take up an earlier session"
        for way in profile.resume:
            if not _offers(agent, way):
                continue
            result = yield from _asked(f"session/{way}", {"sessionId": earlier, **params}, login)
            if not isinstance(result, RpcError):
                how: How = "resumed" if way == "resume" else "loaded"
                mode = yield from _asking(session, profile, result)
                return Opened(earlier, how, mode)
            lost = f"it does not know the earlier session any more: {said(result)}"
    session.id = ""
    result = yield from _asked("session/new", params, login)
    if isinstance(result, RpcError):
        raise OpenError("protocol", f"it refused session/new: {said(result)}")
    if not session.id:
        raise OpenError("protocol", "it opened a session without an id")
    mode = yield from _asking(session, profile, result)
    return Opened(session.id, "new", mode, lost)


def said(error: RpcError) -> str:
    """An agent's error in one line: it is shown to the agent's own caller."""
    data = cast("JsonObject", error.data) if isinstance(error.data, dict) else {}
    # Where the message is only the name of the code, the reason is in one of these.
    more = next((v for k in ("details", "message") if isinstance(v := data.get(k), str)), "")
    told = f"{error.message}: {more}" if more and more != error.message else error.message
    text = " ".join(told.split())[:500] or "no reason given"
    return f"{text} ({error.code})"


def _offers(agent: Agent, way: Literal["resume", "load"]) -> bool:
    if way == "load":
        return agent.can("loadSession")
    return agent.can("sessionCapabilities", "resume")


def _asked(
    method: str, params: JsonObject, login: str | None
) -> Generator[Step, Came, JsonObject | RpcError]:
    """A request for which the agent may want us to log in first."""
    result = yield Ask(method, params)
    if isinstance(result, RpcError) and result.code == AUTH_REQUIRED:
        if login is None:
            raise OpenError("auth", f"it wants a login: {said(result)}")
        done = yield Ask("authenticate", {"methodId": login})
        if isinstance(done, RpcError):
            raise OpenError("auth", f"its login {login!r} failed: {said(done)}")
        result = yield Ask(method, params)
        if isinstance(result, RpcError) and result.code == AUTH_REQUIRED:
            raise OpenError("auth", f"it wants a login again: {said(result)}")
    assert result is not None
    return result


def _asking(session: Session, profile: Profile, result: JsonObject) -> Generator[Step, Came, str]:
    """Put it into the mode in which it asks, and read that back. The mode it is in."""
    asking = profile.asking
    now = modes.told(result)
    if asking.mode and now != [asking.mode]:
        option = modes.config_option(result)
        if isinstance(result.get("modes"), dict):
            ask = Ask("session/set_mode", {"sessionId": session.id, "modeId": asking.mode})
        elif option is not None:
            ask = Ask(
                "session/set_config_option",
                {"sessionId": session.id, "configId": option, "value": asking.mode},
            )
        else:
            raise OpenError("mode", "it has no modes, so nothing says that it asks")
        before = session.told
        done = yield ask
        if isinstance(done, RpcError):
            raise OpenError("mode", f"it refused mode {asking.mode!r}: {said(done)}")
        if session.told == before:
            yield AwaitMode(before)
        now = [session.mode] if session.told > before else []
        if not now:
            raise OpenError("mode", f"it did not say that it is in mode {asking.mode!r}")
    if not now and asking.reported:
        raise OpenError("mode", "it did not say in which mode it is")
    for mode in now:
        if not modes.asks(asking, mode, ""):
            raise OpenError("mode", f"it is in mode {mode[:40]!r}, in which it does not ask")
    return now[0] if now else ""


def _word(value: object) -> str:
    return value[:100] if isinstance(value, str) else ""
