"""The phases of policy as data: what a rule may do there, what is strongest, what it may read."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from sidecar.model import Phase

Effect: TypeAlias = Literal["deny", "ask", "allow", "redact", "label"]

EFFECTS: Final[dict[Phase, tuple[Effect, ...]]] = {
    Phase.CONNECT: ("deny", "allow"),
    Phase.LIST: ("deny", "allow"),
    Phase.CALL: ("deny", "ask", "allow"),
    Phase.RESULT: ("deny", "redact", "label"),
}
"""The effects of each phase, the strongest first. At ``result`` all that match apply."""

ANSWERS: Final[dict[Phase, frozenset[str]]] = {
    Phase.CONNECT: frozenset(("deny", "allow")),
    Phase.LIST: frozenset(("deny", "allow")),
    Phase.CALL: frozenset(("deny", "ask", "allow")),
    Phase.RESULT: frozenset(("deny", "allow")),
}
"""What a decision of each phase may be."""

_CALL: Final = frozenset(
    ("agent", "session", "now", "server", "call", "args", "tool", "permission", "work")
)
VARIABLES: Final[dict[Phase, frozenset[str]]] = {
    Phase.CONNECT: frozenset(("url", "addresses", "verdict", "reason", "server", "agent")),
    # No session and no time: a list must not vary by connection.
    Phase.LIST: frozenset(("agent", "tool", "server")),
    Phase.CALL: _CALL,
    Phase.RESULT: _CALL | {"result"},
}
"""The variables of each phase."""
