"""The check of one dial: read the URL, resolve its host, ask the verdict and the policy.

What comes out is a decision and the addresses that it is about. Whoever dials uses those
addresses: a name that is asked for again may answer something else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from sidecar.config import ServerConfig
from sidecar.egress.addresses import CLASSES, Address
from sidecar.egress.lines import Lines
from sidecar.egress.urls import Ambiguous, Target, parse
from sidecar.egress.verdict import Verdict, class_of_name, judge
from sidecar.events import Bus, Decided, DialDecided
from sidecar.model import Decision, JsonObject, Phase, PolicyError
from sidecar.policy import shapes
from sidecar.ports.policy import Policy
from sidecar.ports.resolver import Resolver, Unresolved
from sidecar.ports.tracer import CURRENT

log = logging.getLogger("sidecar.egress")

Reason: TypeAlias = Literal["added", "dial", "redirect", "oauth", "proxy"]
REASONS: Final[tuple[Reason, ...]] = ("added", "dial", "redirect", "oauth", "proxy")

PROXY_PORTS: Final = (80, 443)
"""Ports that the forward proxy dials where no rule says anything."""

SIDECAR: Final = "sidecar"
"""The principal of a dial that the sidecar makes of its own accord."""

Never: TypeAlias = Callable[[Address], str | None]
"""Why an address is never dialled, whatever a rule allows; ``None`` where that is open."""


class Denied(OSError):
    """A dial that was not allowed. An ``OSError``: whoever dials takes it as one that failed.

    ``strerror`` says which rule, and quotes nothing of the input but what the rule itself says.
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__(None, told(decision))
        self.decision = decision

    def __str__(self) -> str:
        return str(self.strerror)


def told(decision: Decision) -> str:
    """A denial for people."""
    why = decision.message
    if not why or why in (decision.rule, decision.rule.rpartition("/")[2]):
        return f"denied by rule {decision.rule}"
    return f"denied by rule {decision.rule}: {why}"


@dataclass(frozen=True, slots=True)
class About:
    """Whom a dial is for: the variables ``server`` and ``agent`` of rules.

    ``checked`` says that the built-in verdict counts. It does not for the servers that the
    operator configured: there rules alone decide. ``lenient`` lets every address that can be
    read pass where no rule denies it: a server that was added without a check.
    """

    server: JsonObject
    principal: str = SIDECAR
    checked: bool = True
    lenient: bool = False

    @classmethod
    def of(cls, config: ServerConfig, principal: str = SIDECAR) -> About:
        """A server, dialled by the sidecar itself unless somebody asks for it."""
        lenient = config.runtime and not config.checked
        return cls(server_input(config), principal, checked=config.runtime, lenient=lenient)


NOBODY: Final = About(
    {"name": "", "transport": "", "url": "", "trusted": False, "runtime": False}, ""
)
"""No server: a client of the forward proxy, or somebody who only asks."""


def server_input(config: ServerConfig) -> JsonObject:
    """The variable ``server`` of rules."""
    given: JsonObject = {
        "name": config.name,
        "transport": config.transport,
        "trusted": config.trusted,
        "runtime": config.runtime,
    }
    return given if not config.url else {**given, "url": config.url}


@dataclass(frozen=True, slots=True)
class Checked:
    """A decision about one dial. ``addresses`` are what may be dialled: none unless allowed."""

    decision: Decision
    verdict: Verdict
    addresses: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it may be dialled."""
        return self.decision.decision == "allow"

    @property
    def target(self) -> Target:
        """What is dialled.

        Raises:
            Denied: it may not be.
        """
        if not self.ok or self.verdict.target is None:
            raise Denied(self.decision)
        return self.verdict.target

    @property
    def allowable(self) -> bool:
        """Whether the verdict denied it, and a rule could allow it."""
        rule, verdict = self.decision.rule, self.verdict
        by_verdict = rule == f"egress/{verdict.why}" and rule not in self.decision.rules
        readable = bool(verdict.addresses) and verdict.class_ != "ambiguous"
        return not self.ok and by_verdict and readable

    def as_json(self) -> JsonObject:
        """What the admin API and the command line tell."""
        target = self.verdict.target
        shown: JsonObject = {**shapes.decision(self.decision), "verdict": self.verdict.as_input()}
        if target is not None:
            shown["url"] = url_input(target)
        shown["addresses"] = [
            {"ip": address.text, "class": address.class_} for address in self.verdict.addresses
        ]
        return shown


class EgressCheck:
    """Decides about dials. ``policy`` gives the policy in force, once for each check."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        resolver: Resolver,
        bus: Bus,
        *,
        proxy_never: Never | None = None,
    ) -> None:
        """``proxy_never`` holds for the reason ``proxy``, and may be set to another."""
        self.policy = policy
        self._resolver = resolver
        self._bus = bus
        self.proxy_never = proxy_never
        self._lines = Lines()

    async def url(
        self, text: str, reason: Reason, about: About = NOBODY, *, asked: bool = False
    ) -> Checked:
        """Check a URL. Never raises: what goes wrong is a deny.

        ``asked`` is for questions: nothing is dialled, so no ``Decided`` is published.
        """
        try:
            target = parse(text)
        except Ambiguous as error:
            verdict = Verdict(False, error.why, "ambiguous")
            return self._decide(verdict, reason, about, asked=asked)
        return await self.target(target, reason, about, asked=asked)

    async def target(
        self, target: Target, reason: Reason, about: About = NOBODY, *, asked: bool = False
    ) -> Checked:
        """Check what was read already. Never raises, as :meth:`url`."""
        began = time.perf_counter()
        addresses: Sequence[str] = ()
        if target.address is None:
            try:
                addresses = await self._resolver.addresses(asked_for(target.host, about))
            except Unresolved:
                pass
            except Exception:
                # A resolver is a port: whatever it does wrong, there is no address to dial.
                log.exception("a look-up failed")
        return self._decide(judge(target, addresses), reason, about, asked=asked, began=began)

    def literal(self, target: Target, reason: Reason, about: About) -> Checked:
        """Check a target whose host is an address, which nothing has to resolve. Never raises."""
        return self._decide(judge(target), reason, about, asked=False)

    def refused(self, why: str, reason: Reason, about: About) -> Denied:
        """The denial of what cannot be read; ``why`` is that of ``Ambiguous``."""
        verdict = Verdict(False, why, "ambiguous")
        return Denied(self._decide(verdict, reason, about, asked=False).decision)

    # ------------------------------------------------------------------------------- inside

    def _decide(
        self,
        verdict: Verdict,
        reason: Reason,
        about: About,
        *,
        asked: bool,
        began: float | None = None,
    ) -> Checked:
        if began is None:
            began = time.perf_counter()
        try:
            decision = self._decision(verdict, reason, about)
        except Exception as error:
            log.exception("deciding about a dial failed")
            decision = _error(type(error).__name__)
        if not asked:
            name = str(about.server["name"])
            # A stdio server that dials through the proxy is its principal.
            who = f"server {name}" if name and reason != "proxy" else about.principal
            where = "" if verdict.target is None else verdict.target.origin
            self._lines.tell(reason, where, who, decision)
        if not asked and self._bus.wanted(DialDecided):
            self._bus.publish(
                DialDecided(
                    trace=CURRENT.get(),
                    decision=decision.decision,
                    rule=decision.rule,
                    reason=reason,
                    target="" if verdict.target is None else verdict.target.origin,
                    class_=verdict.class_,
                    server=str(about.server["name"]),
                    principal=about.principal,
                    seconds=time.perf_counter() - began,
                )
            )
        if not asked and self._bus.wanted(Decided):
            where = "" if verdict.target is None else verdict.target.origin
            self._bus.publish(
                Decided(
                    call="",
                    phase=Phase.CONNECT.value,
                    target=where,
                    principal=about.principal,
                    decision=decision,
                )
            )
        if decision.decision != "allow":
            return Checked(decision, verdict)
        return Checked(decision, verdict, tuple(address.text for address in verdict.addresses))

    def _decision(self, verdict: Verdict, reason: Reason, about: About) -> Decision:
        if reason == "proxy" and verdict.ok and verdict.port not in PROXY_PORTS:
            verdict = replace(verdict, ok=False, why="port")
        if about.lenient and verdict.target is not None and verdict.class_ != "ambiguous":
            verdict = replace(verdict, ok=True, why="unchecked")
        given: JsonObject = {
            "url": BLANK if verdict.target is None else url_input(verdict.target),
            "addresses": [
                {"ip": address.text, "class": address.class_} for address in verdict.addresses
            ],
            "reason": reason,
            "server": about.server,
            "agent": {"principal": about.principal},
        }
        # Without a verdict, rules alone decide about a configured server. What cannot be read
        # has one all the same: there is nothing to dial.
        judged = about.checked or verdict.target is None
        if judged:
            given["verdict"] = verdict.as_input()
        decision = self.policy().decide(Phase.CONNECT, given)
        if decision.decision == "allow":
            return self._allowed(decision, verdict, reason, judged=judged)
        if decision.decision != "deny":
            # The phase knows no such answer; a policy that gives one does not say allow.
            return _deny(decision, "no-answer", "no rule allowed it")
        # A policy of this name may have a rule of this name; then it is among those that matched.
        ours = decision.rule == f"egress/{verdict.why}" and decision.rule not in decision.rules
        return replace(decision, message=verdict.text) if judged and ours else decision

    def _allowed(
        self, decision: Decision, verdict: Verdict, reason: Reason, *, judged: bool
    ) -> Decision:
        """What holds whatever a rule allows, and whichever engine was asked."""
        if judged and verdict.class_ == "ambiguous":
            return _deny(decision, verdict.why, verdict.text)
        if not verdict.addresses:
            return _deny(decision, "unresolved", CLASSES["unresolved"])
        if reason == "proxy" and self.proxy_never is not None:
            for address in verdict.addresses:
                why = self.proxy_never(address)
                if why is not None:
                    return _deny(decision, "own", f"the forward proxy never dials {why}")
        return decision


BLANK: Final[JsonObject] = {"scheme": "", "host": "", "port": 0, "path": ""}


def url_input(target: Target) -> JsonObject:
    """The variable ``url`` of rules."""
    return {
        "scheme": target.scheme,
        "host": target.host,
        "port": target.port,
        "path": target.path,
    }


def asked_for(host: str, about: About) -> str:
    """The name to ask for. A stranger's is absolute, so that no search domain completes it."""
    if about.checked and class_of_name(host) == "public":
        return f"{host}."
    return host


def _deny(decision: Decision, why: str, message: str) -> Decision:
    return replace(
        decision,
        decision="deny",
        rule=f"egress/{why}",
        policy="egress",
        message=message,
        message_constant=True,
    )


def _error(name: str) -> Decision:
    message = f"deciding failed ({name}); see the log"
    return Decision(
        "deny",
        "egress/error",
        policy="egress",
        message=message,
        error=PolicyError("egress", 0, 0, message, "egress/error"),
    )
