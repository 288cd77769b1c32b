"""Rules that can never match, and rules that never decide because a stronger one always does.

Only what is certain is told: conditions are compared as sets of what is joined by ``&&``, with
the policy's own variables put in.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, TypeAlias

import msgspec

from sidecar.model import Phase
from sidecar.policy.cel.nodes import Binary, Literal, Logic, Node, Span, dotted
from sidecar.policy.compiler import Compiled
from sidecar.policy.document import Globs, Match
from sidecar.policy.phases import EFFECTS
from sidecar.policy.programs import VARIABLES
from sidecar.policy.rules import Rule
from sidecar.ports.policy import PolicyFault

MOST_COMPARED: Final = 200
"""Rules that one is compared with: of a thousand that say the same, not all need be told."""

# What an expression says, without its places: comparable and hashable.
Meaning: TypeAlias = object


@dataclass(frozen=True, slots=True)
class _Subject:
    """A rule with what it says."""

    rule: Rule
    match: Match
    parts: frozenset[Meaning]
    order: int


def warnings(compiled: Sequence[Compiled]) -> list[PolicyFault]:
    """Every rule that is unreachable or shadowed, in the order of the files."""
    found: list[PolicyFault] = []
    subjects: dict[Phase, list[_Subject]] = {phase: [] for phase in Phase}
    for file in compiled:
        for rule in file.rules:
            tree = file.trees[rule.id.rpartition("/")[2], rule.phase]
            why = _contradiction(list(_conjuncts(tree, file.variables)), file.document.match)
            if why is not None:
                found.append(_fault(rule, "unreachable", f"it never matches: {why}"))
            parts = frozenset(
                _meaning(node, file.variables) for node in _conjuncts(tree, file.variables)
            )
            of_phase = subjects[rule.phase]
            of_phase.append(_Subject(rule, file.document.match, parts, len(of_phase)))
    for phase, of_phase in subjects.items():
        found += _shadowed(of_phase, EFFECTS[phase])
    return list(dict.fromkeys(found))


def _fault(rule: Rule, code: str, message: str) -> PolicyFault:
    return PolicyFault(rule.file, rule.line, rule.column, rule.id, message, True, code)


# ------------------------------------------------------------------------------- unreachable


def _contradiction(parts: Iterable[Node], match: Match) -> str | None:
    """Why these conditions cannot all hold for what the policy matches."""
    said: dict[str, str] = {}
    for node in parts:
        equal = _equality(node)
        if equal is None:
            continue
        name, value = equal
        if said.setdefault(name, value) != value:
            return f"{name} cannot be {said[name]!r} and {value!r}"
    for name, globs in (
        ("tool.server", match.server),
        ("server.name", match.server),
        ("tool.upstream_name", match.tool),
        ("tool.kind", match.kind),
    ):
        if name in said and globs.patterns and not _takes(globs, said[name]):
            return f"{name} is {said[name]!r}, which match leaves out"
    return None


def _equality(node: Node) -> tuple[str, str] | None:
    """``name == "text"``, either way round."""
    if not isinstance(node, Binary) or node.op != "==":
        return None
    for one, other in ((node.left, node.right), (node.right, node.left)):
        names = dotted(one)
        if names is not None and isinstance(other, Literal) and isinstance(other.value, str):
            return ".".join(names), other.value
    return None


def _takes(globs: Globs, name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in globs.patterns)


# ---------------------------------------------------------------------------------- shadowed


def _shadowed(subjects: Sequence[_Subject], strength: Sequence[str]) -> Iterator[PolicyFault]:
    """Rules whose every match is one of a rule that decides before them."""
    always = [each for each in subjects if not each.parts]
    keyed: dict[Meaning, list[_Subject]] = {}
    for each in subjects:
        if each.parts:
            # Whatever has all of its parts has this one: nothing else need be looked at.
            keyed.setdefault(min(each.parts, key=repr), []).append(each)
    for each in subjects:
        candidates = chain(always, *(keyed.get(part, ()) for part in each.parts))
        for other in islice(candidates, MOST_COMPARED):
            if _decides_before(other, each, strength):
                message = (
                    f"it never decides: whenever it matches, {other.rule.id} "
                    f"({other.rule.effect}) does too"
                )
                yield _fault(each.rule, "shadowed", message)
                break


def _decides_before(one: _Subject, other: _Subject, strength: Sequence[str]) -> bool:
    if one is other or (one.rule.audit and not other.rule.audit):
        return False
    if not one.parts <= other.parts or not _covers(one.match, other.match):
        return False
    first, second = strength.index(one.rule.effect), strength.index(other.rule.effect)
    if one.rule.effect in ("redact", "label"):
        # These add up; the same label twice is one too many.
        same = one.rule.effect == other.rule.effect == "label"
        return same and one.order < other.order and set(other.rule.labels) <= set(one.rule.labels)
    return first < second or (first == second and one.order < other.order)


def _covers(one: Match, other: Match) -> bool:
    pairs = ((one.server, other.server), (one.tool, other.tool), (one.kind, other.kind))
    return all(_wider(wide, narrow) for wide, narrow in pairs)


def _wider(wide: Globs, narrow: Globs) -> bool:
    """Whether everything that ``narrow`` takes, ``wide`` takes."""
    if not wide.patterns or "*" in wide.patterns:
        return True
    return bool(narrow.patterns) and all(
        pattern in wide.patterns or (not set(pattern) & set("*?[") and _takes(wide, pattern))
        for pattern in narrow.patterns
    )


# ----------------------------------------------------------------------------------- meaning


def _conjuncts(tree: Node, variables: Mapping[str, Node]) -> Iterator[Node]:
    """What has to be true for the whole to be; a constant true is nothing."""
    own = _own(tree, variables)
    if own is not None:
        yield from _conjuncts(own, variables)
    elif isinstance(tree, Logic) and not tree.stop:
        for operand in tree.operands:
            yield from _conjuncts(operand, variables)
    elif not (isinstance(tree, Literal) and tree.value is True):
        yield tree


def _own(node: Node, variables: Mapping[str, Node]) -> Node | None:
    """The policy's own variable that a name stands for. They cannot read themselves."""
    names = dotted(node)
    if names is None or len(names) != 2 or f"{names[0]}." != VARIABLES:
        return None
    return variables.get(names[1])


def _meaning(node: object, variables: Mapping[str, Node]) -> Meaning:
    """The tree without its places."""
    if isinstance(node, Node):
        own = _own(node, variables)
        if own is not None:
            return _meaning(own, variables)
        fields = ((name, getattr(node, name)) for name in node.__struct_fields__)
        kept = (
            _meaning(value, variables)
            for name, value in fields
            if name != "depth" and not isinstance(value, Span)
        )
        return (type(node).__name__, *kept)
    if isinstance(node, tuple):
        return tuple(_meaning(each, variables) for each in node)
    if isinstance(node, msgspec.Struct):
        return repr(node)
    # 1, 1.0 and true are one key of a dict, and three things in an expression.
    return (type(node).__name__, node if isinstance(node, str | frozenset) else repr(node))
