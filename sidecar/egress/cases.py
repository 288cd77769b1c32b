"""Cases of egress as data: a URL, what its names resolve to, and what is to be decided.

One JSON object a line: ``url``, ``dns`` (name → addresses), ``verdict`` (``allow`` or ``deny``);
and where the case needs them ``chain`` (the ``Location`` of each redirect), ``dns_second`` (what
a second look-up would answer), ``must_dial`` (the only addresses that may be dialled) and
``not_equal`` (a host that this one must not be taken for). ``id``, ``cat``, ``why`` and ``cname``
are for people.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from sidecar.config import ServerConfig
from sidecar.egress.check import About, Checked, Denied, EgressCheck
from sidecar.egress.follow import NotFollowed, next_hop
from sidecar.events import Bus
from sidecar.ports.policy import Policy
from sidecar.ports.resolver import Unresolved

SERVER: Final = ServerConfig("case", "http", runtime=True)
"""The server that is added in a case."""


class Case(msgspec.Struct, frozen=True):
    """One line."""

    url: str
    verdict: Literal["allow", "deny"]
    dns: dict[str, list[str]] = {}
    chain: list[str] = []
    dns_second: dict[str, list[str]] = {}
    must_dial: list[str] | None = None
    not_equal: str = ""
    id: str = ""
    cat: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was decided. ``wrong`` says what is not as the case wants it, else it is empty."""

    decision: Literal["allow", "deny"]
    rule: str
    wrong: str = ""


def parse(line: str) -> Case:
    """One line as a case.

    Raises:
        ValueError: what is wrong with it.
    """
    try:
        case = msgspec.json.decode(line, type=Case)
        given = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    # A key for people may have any name. One that is meant for us and misspelled would leave the
    # case without its answers: what is to be denied is then, whatever the rules say.
    known = Case.__struct_fields__
    for key in given.keys() - {*known, "cname"}:
        if meant := difflib.get_close_matches(key.lower(), known, 1, 0.75):
            raise ValueError(f'unknown key "{key}"; did you mean "{meant[0]}"?')
    for answers in (*case.dns.values(), *case.dns_second.values(), case.must_dial or ()):
        for answer in answers:
            try:
                ipaddress.ip_address(answer)
            except ValueError:
                raise ValueError(f'"{answer}" is not an address') from None
    return case


class Table:
    """A resolver that answers from a case, and differently the second time."""

    def __init__(
        self, first: Mapping[str, Sequence[str]], second: Mapping[str, Sequence[str]]
    ) -> None:
        self._first = first
        self._second = second
        self.asked: list[str] = []

    async def addresses(self, host: str) -> Sequence[str]:
        """See :class:`sidecar.ports.resolver.Resolver`."""
        name = host.removesuffix(".")
        again = name in self.asked and name in self._second
        self.asked.append(name)
        found = (self._second if again else self._first).get(name)
        if not found:
            raise Unresolved("the case has no answer")
        return found


async def run(case: Case, policy: Callable[[], Policy]) -> Outcome:
    """Add a server with the case's URL, follow its redirects, and compare."""
    table = Table(case.dns, case.dns_second)
    checked, rule = await _decided(case, EgressCheck(policy, table, Bus()))
    ok = checked is not None and checked.ok
    decision: Literal["allow", "deny"] = "allow" if ok else "deny"
    wrong = ""
    if decision != case.verdict:
        wrong = f"expected {case.verdict}, decided {decision} by rule {rule}"
    elif checked is not None and case.not_equal and checked.verdict.host == case.not_equal:
        wrong = f"the host was taken for {case.not_equal}"
    elif (
        checked is not None
        and case.must_dial is not None
        and not set(checked.addresses) <= set(case.must_dial)
    ):
        wrong = f"may dial {', '.join(checked.addresses)}, not {', '.join(case.must_dial)}"
    return Outcome(decision, rule, wrong)


async def _decided(case: Case, check: EgressCheck) -> tuple[Checked | None, str]:
    """The last check, ``None`` for a redirect that leads nowhere, and the rule."""
    checked = await check.url(case.url, "added", About.of(SERVER))
    for location in case.chain:
        try:
            found = next_hop(checked.target, "GET", 302, location)
        except Denied:
            break
        except NotFollowed:
            return None, "egress/redirect"
        checked = await check.target(found, "redirect", About.of(SERVER))
    return checked, checked.decision.rule
