"""What an API server does with the policies of `k8s/inject`, by the sidecar's own CEL engine.

The engine has no message types, so `Object.spec{a: b}` and `JSONPatch{…}` become maps first. What
an API server also does, and this does not: judge types, budgets, and names of types against their
place. Merging knows what those policies use: maps, and lists by name.
"""

from __future__ import annotations

import copy
import re
from itertools import pairwise
from typing import Any

from sidecar.policy.cel import CelError, compile_text

Json = dict[str, Any]
_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"|[A-Za-z_][\w.]*\s*\{|[{}]|[A-Za-z_]\w*|\s+|.', re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")


class Rejected(Exception):
    """The pod is not admitted; the texts say why."""


def as_maps(expression: str) -> str:
    """Messages to maps: the type goes, and names of fields become strings."""
    out: list[str] = []
    messages: list[bool] = []
    before = ""
    tokens = [*_TOKENS.findall(expression), ""]
    for token, after in pairwise(tokens):
        if token.endswith("{"):
            messages.append(token != "{")
            out.append("{")
        else:
            if token == "}":
                messages.pop()
            field = bool(messages) and messages[-1] and before in ("{", ",") and after == ":"
            out.append(f'"{token}"' if field and _NAME.fullmatch(token) else token)
        before = out[-1] if token.strip() else before
    return "".join(out)


def evaluated(expression: str, given: Json) -> Any:
    found = compile_text(as_maps(expression))(given)
    assert not isinstance(found, CelError), (str(found), expression)
    return found


def patched(pod: Json, operations: list[Json]) -> Json:
    """JSON Patch (RFC 6902), of which `add` is used."""
    pod = copy.deepcopy(pod)
    for each in operations:
        assert each["op"] == "add"
        *way, last = each["path"].removeprefix("/").split("/")
        place: Any = pod
        for step in way:
            place = place[step]
        if isinstance(place, list):
            place.insert(len(place) if last == "-" else int(last), each["value"])
        else:
            place[last] = each["value"]
    return pod


def merged(old: Any, new: Any) -> Any:
    match old, new:
        case dict(), dict():
            return {**old, **{key: merged(old.get(key), each) for key, each in new.items()}}
        case list(), list():
            by_name = {each["name"]: each for each in old}
            for each in new:
                by_name[each["name"]] = merged(by_name.get(each["name"]), each)
            return list(by_name.values())
    return new


def mutate(policy: Json, pod: Json, params: Json | None) -> Json:
    """The pod as it goes on to what is next."""
    spec = policy["spec"]
    for condition in spec["matchConditions"]:
        if not evaluated(condition["expression"], {"object": pod}):
            return pod
    if params is None:
        raise Rejected("no parameters")
    for mutation in spec["mutations"]:
        given = {"object": pod, "params": params}
        if mutation["patchType"] == "JSONPatch":
            pod = patched(pod, evaluated(mutation["jsonPatch"]["expression"], given))
        else:
            pod = merged(pod, evaluated(mutation["applyConfiguration"]["expression"], given))
    return pod


def validate(
    policy: Json, pod: Json, params: Json, namespace: Json, before: Json | None = None
) -> list[str]:
    """The messages of what does not hold; an update has a pod that was there before."""
    spec = policy["spec"]
    given: Json = {
        "object": pod,
        "oldObject": before,
        "request": {"operation": "UPDATE" if before else "CREATE"},
        "params": params,
        "namespaceObject": namespace,
        "variables": {},
    }
    for variable in spec["variables"]:
        given["variables"][variable["name"]] = evaluated(variable["expression"], given)
    return [
        rule["message"]
        for rule in spec["validations"]
        if evaluated(rule["expression"], given) is not True
    ]
