"""Every key of ``harnesses.*``, ``checkouts.*`` and ``children``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from sidecar.config import notbuilt, values
from sidecar.config.egress import PROXY_VARIABLES
from sidecar.config.nodes import Node, Scalar, kind
from sidecar.config.record import Field, Got, Record, every
from sidecar.config.servers import GLOBS
from sidecar.config.shapes import (
    At,
    Bad,
    Choice,
    FilePath,
    Flag,
    ListOf,
    MapOf,
    Schema,
    Secret,
    Shape,
    Text,
    Whole,
    duration,
    quiet_text,
)
from sidecar.config.types import CheckoutConfig, HarnessConfig, Profile

DAY = 86400.0
PROFILES: tuple[Profile, ...] = get_args(Profile)
LARGEST_UID = (1 << 32) - 2
_REF = re.compile(r"(?!-)[^\x00-\x20\x7f~^:?*\[\\]{1,255}")


def ref(text: str) -> str:
    """A branch, with or without ``refs/heads/`` (the rules of git-check-ref-format)."""
    parts = text.split("/")
    bad = ".." in text or "@{" in text or text == "@" or text.endswith(".")
    if bad or not _REF.fullmatch(text) or any(_bad_part(part) for part in parts):
        raise ValueError("is no name of a branch; write it like main or origin/main")
    return text


def _bad_part(part: str) -> bool:
    return not part or part.startswith(".") or part.endswith(".lock")


def checkout_name(name: str) -> None:
    """As a server's, but that it may be ``sidecar``: it is in no name of a tool."""
    if name != values.RESERVED:
        values.server_name(name)


class Harness:
    """Fields of ``harnesses.*``."""

    PROFILE = Field(
        "profile",
        Choice(*PROFILES),
        "",
        "Which agent it is; default: the harness's name. generic: any other that speaks ACP.",
    )
    COMMAND = Field(
        "command",
        ListOf(quiet_text("text"), what="texts", least=1),
        (),
        "The program and its arguments; default: the profile's.",
    )
    ENV = Field(
        "env",
        MapOf(Secret(values.env_value), what="variables", key=values.env_name),
        {},
        "Variables of its environment, beside PATH HOME USER LANG TERM TMPDIR.",
        empty=True,
    )
    TRUSTED = Field("trusted", Flag(), False, "Its answers carry no label outside.")
    GATED = Field(
        "gated",
        Flag(),
        False,
        "true: a person approves each call of the agent as a whole, too.",
    )
    MCP = Field(
        "mcp", GLOBS, (), "Patterns of the servers it may use itself, of those its caller may use."
    )
    BUSY = Field(
        "busy",
        Choice("refuse", "queue"),
        "refuse",
        "What becomes of another task for a work that has one: refuse or queue.",
    )
    HOLD = Field(
        "hold",
        duration(0, DAY),
        600.0,
        "How long a call is held open while it works; then the answer says to ask again.",
    )
    EGRESS = Field(
        "egress",
        Choice("direct", "proxy"),
        "direct",
        "proxy: it is told to use the forward proxy.",
    )


def _harness(got: Got) -> HarnessConfig:
    name, profile = got.at.key, got[Harness.PROFILE]
    if not got.has(Harness.PROFILE):
        profile = name if name in PROFILES else ""
        if not profile:
            got.fault(None, f"profile is missing: it is one of {', '.join(PROFILES)}")
    if profile == "generic" and not got.has(Harness.COMMAND):
        got.fault(None, "command is missing: generic is no program; name one that speaks ACP")
    if got[Harness.COMMAND][:1] == ("",):
        got.fault(Harness.COMMAND, "begins with an empty text; name the program")
    if got[Harness.EGRESS] == "proxy":
        for variable in got[Harness.ENV]:
            if variable.lower() in PROXY_VARIABLES:
                got.fault(Harness.ENV, f"{variable} is set by the sidecar where egress is proxy")
    return HarnessConfig(
        name=name,
        profile=cast("Profile", profile or "generic"),
        command=got[Harness.COMMAND],
        env=got[Harness.ENV],
        trusted=got[Harness.TRUSTED],
        gated=got[Harness.GATED],
        mcp=got[Harness.MCP],
        busy=cast("Literal['refuse', 'queue']", got[Harness.BUSY]),
        hold=got[Harness.HOLD],
        egress=cast("Literal['direct', 'proxy']", got[Harness.EGRESS]),
    )


HARNESS = Record(
    "a harness's mapping",
    every(Harness),
    _harness,
    notbuilt.rows("harnesses.*"),
    hints={
        "args": "write the arguments after the program, in command: [program, argument]",
        "url": "an agent is a program of this machine: write command",
        "servers": "write mcp: the servers that the agent itself may use",
        "cwd": "an agent works in the worktrees of checkouts",
    },
)


class Checkout:
    """Fields of ``checkouts.*``."""

    PATH = Field("path", FilePath(), Path(), "The repository's folder.", required=True)
    BASE = Field(
        "base",
        Text("a branch", ref, {"type": "string"}),
        None,
        "Where works begin and land; default: origin's HEAD, else the branch checked out.",
    )
    FETCH = Field("fetch", Flag(), False, "true: a sweep fetches it first.")


CHECKOUT = Record(
    "a checkout's mapping",
    every(Checkout),
    lambda got: CheckoutConfig(
        got.at.key, got[Checkout.PATH], got[Checkout.BASE], got[Checkout.FETCH]
    ),
    hints={"branch": "write base", "url": "clone it first, and write the path of the clone"},
)


class CheckoutShape(Shape[CheckoutConfig]):
    """A mapping, or the path alone."""

    def read(self, node: Node, at: At) -> CheckoutConfig | Bad:
        if isinstance(node, Scalar):
            if not isinstance(node.value, str):
                return at.fault(node, f"expected a path or a mapping, got {kind(node)}")
            path = FilePath().read(node, at)
            return path if isinstance(path, Bad) else CheckoutConfig(at.key, path)
        return CHECKOUT.read(node, at)

    def schema(self) -> Schema:
        return {"anyOf": [FilePath().schema(), CHECKOUT.schema()]}


HARNESSES = MapOf(HARNESS, what="harnesses", key=values.server_name, pattern=values.NAME)
CHECKOUTS = MapOf(CheckoutShape(), what="checkouts", key=checkout_name, pattern=values.NAME)


@dataclass(frozen=True, slots=True)
class Children:
    """``children`` as it was read."""

    user: int | None = None
    home: Path | None = None


class ChildrenKeys:
    """Fields of ``children``."""

    USER = Field(
        "user",
        Whole(1, LARGEST_UID),
        None,
        "The uid that stdio servers and coding agents run under; default: the sidecar's own.",
        empty=True,
    )
    HOME = Field(
        "home",
        FilePath(),
        None,
        "Their HOME, which belongs to that uid; default: that user's own.",
        empty=True,
    )


def _children(got: Got) -> Children:
    place = got.place(ChildrenKeys.USER)
    named = got.has(ChildrenKeys.USER) and not (isinstance(place, Scalar) and place.value is None)
    if got[ChildrenKeys.HOME] is not None and not named:
        got.fault(ChildrenKeys.HOME, "stands without user: say whose home it is")
    return Children(got[ChildrenKeys.USER], got[ChildrenKeys.HOME])


CHILDREN = Record(
    "a mapping",
    every(ChildrenKeys),
    _children,
    notbuilt.rows("children"),
    hints={"uid": "write user"},
)
