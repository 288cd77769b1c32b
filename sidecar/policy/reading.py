"""Inputs that people write: for ``policy eval``, on the command line and over the admin API."""

from __future__ import annotations

from typing import cast

from sidecar.config.faults import did_you_mean
from sidecar.model import JsonObject, Phase
from sidecar.policy.phases import VARIABLES


class BadInput(Exception):
    """What was given is no input; the text says what it should be, and quotes no value of it."""


def as_object(value: object, what: str) -> JsonObject:
    """A JSON object.

    Raises:
        BadInput: it is something else.
    """
    if not isinstance(value, dict):
        raise BadInput(f"{what} has to be a JSON object")
    return cast("JsonObject", value)


def read_input(value: object) -> tuple[Phase, JsonObject]:
    """The phase (``call`` where it is absent) and the variables of an input.

    Raises:
        BadInput: a key or a value that no input has.
    """
    given = dict(as_object(value, "the input"))
    known = frozenset().union(*VARIABLES.values())
    for name in given:
        if name not in known and name != "phase":
            near = did_you_mean(name, known) or f"; it has phase, {', '.join(sorted(known))}"
            raise BadInput(f"an input has no {name!r}{near}")
    phases = [phase.value for phase in Phase]
    named = given.pop("phase", "call")
    if named not in phases:
        raise BadInput(f"phase has to be one of {', '.join(phases)}")
    phase = Phase(str(named))
    for name, held in given.items():
        if name not in ("now", "reason", "addresses") and not isinstance(held, dict):
            raise BadInput(f"{name} has to be an object")
    return phase, given
