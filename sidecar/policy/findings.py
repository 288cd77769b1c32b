"""What is wrong with an expression in its phase, in words that know the phases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, Literal, TypeAlias, cast

from msgspec.structs import replace as replaced

from sidecar.model import JsonObject, Phase
from sidecar.policy.cel.compile import compile_tree
from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.errors import CompileError, Finding
from sidecar.policy.cel.lint import lint
from sidecar.policy.cel.nodes import Binary, Ident, Logic, Node, Select, walk
from sidecar.policy.cel.nodes import Literal as Constant
from sidecar.policy.cel.types import BOOL, DYN, MAP, STRING, Field, Type, list_of, object_of
from sidecar.policy.document import Match
from sidecar.policy.phases import VARIABLES
from sidecar.policy.programs import VARIABLES as OWN

Expected: TypeAlias = Literal["bool", "string", "any"]

_TYPES: Final[dict[Expected, Type | None]] = {"bool": BOOL, "string": STRING, "any": None}


def check(
    tree: Node, env: Environment, expected: Expected, phase: Phase | None, own: Iterable[str]
) -> list[Finding]:
    """Everything that is wrong with an expression, errors and warnings.

    ``phase`` ``None`` is for variables, which are read in the phases of their readers. ``own``
    are the policy's own variables.
    """
    found = lint(tree, env, _TYPES[expected], _elsewhere(phase, tuple(own)))
    if any(not finding.warning for finding in found):
        return found
    try:
        compile_tree(tree, env)
    except CompileError as error:
        # What the variables that it reads may not read here.
        found += error.findings
    return found


def _elsewhere(phase: Phase | None, own: tuple[str, ...]) -> dict[str, str]:
    told: dict[str, str] = {}
    if phase is not None:
        for name in frozenset().union(*VARIABLES.values()) - VARIABLES[phase]:
            where = " and ".join(p for p in Phase if name in VARIABLES[p])
            told[name] = f"it is there at {where}, not at {phase}"
    has = ", ".join(OWN + name for name in own) or "none"
    told[OWN] = f"a variable reads those above it: {has}" if phase is None else f"there are {has}"
    return told


# ------------------------------------------------------------------------- names of arguments


def pinned(tree: Node, match: Match) -> tuple[str, str] | None:
    """The one tool (server, its own name) that a rule can be about, where that is certain."""
    said: dict[str, str] = {}
    for node in _conjuncts(tree):
        if isinstance(node, Binary) and node.op == "==":
            for name, value in ((node.left, node.right), (node.right, node.left)):
                if (
                    isinstance(name, Select)
                    and isinstance(name.operand, Ident)
                    and name.operand.name == "tool"
                    and isinstance(value, Constant)
                    and isinstance(value.value, str)
                ):
                    said.setdefault(name.field, value.value)
    for field, globs in (("server", match.server), ("upstream_name", match.tool)):
        if len(globs.patterns) == 1 and not set(globs.patterns[0]) & set("*?["):
            said.setdefault(field, globs.patterns[0])
    if "name" in said:
        server, separator, tool = said["name"].partition("__")
        if separator:
            said.setdefault("server", server)
            said.setdefault("upstream_name", tool)
    if "server" in said and "upstream_name" in said:
        return said["server"], said["upstream_name"]
    return None


def _conjuncts(tree: Node) -> Iterable[Node]:
    if isinstance(tree, Logic) and not tree.stop:
        for operand in tree.operands:
            yield from _conjuncts(operand)
    else:
        yield tree


def arguments(tree: Node, env: Environment, schema: JsonObject) -> list[Finding]:
    """Warnings about arguments that a tool with this input schema does not have."""
    args = _arguments(schema)
    if args is None or env.variables is None or "args" not in env.variables:
        return []
    known = replace(env, variables={**env.variables, "args": args})
    before = {(each.line, each.column, each.code) for each in lint(tree, env, None)}
    return [
        replaced(each, code="unknown-argument", message=f"argument: {each.message}", warning=True)
        for each in lint(tree, known, None)
        if each.code == "unknown-field" and (each.line, each.column, each.code) not in before
    ]


def _arguments(schema: JsonObject) -> Type | None:
    """``args`` of a tool. What a schema leaves open is left open here."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return None
    if any(key in schema for key in ("patternProperties", "$ref", "allOf", "anyOf", "oneOf")):
        return None
    if isinstance(schema.get("additionalProperties"), dict) or schema.get("additionalProperties"):
        return None
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    return object_of(
        **{
            str(name): Field(_type(cast("object", each)), name not in needed)
            for name, each in properties.items()
        }
    )


def _type(schema: object) -> Type:
    said: object = schema.get("type") if isinstance(schema, dict) else None
    simple: Mapping[str, Type] = {
        "string": STRING,
        "boolean": BOOL,
        "array": list_of(DYN),
        "object": MAP,
    }
    # Numbers of JSON may come with or without a fraction.
    return simple.get(said, DYN) if isinstance(said, str) else DYN


def own_variables(tree: Node) -> set[str]:
    """The policy's own variables that an expression reads itself."""
    return {
        node.field
        for node in walk(tree)
        if isinstance(node, Select)
        and isinstance(node.operand, Ident)
        and f"{node.operand.name}." == OWN
    }
