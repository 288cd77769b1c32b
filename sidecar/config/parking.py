"""Every key of ``parking``."""

from __future__ import annotations

import re

from sidecar.config import values
from sidecar.config.record import Field, Record, every
from sidecar.config.servers import GLOBS
from sidecar.config.shapes import Flag, Secret, Text, Whole, duration
from sidecar.config.types import ParkingConfig, Rate, SecretRef, Webhook

_DAY = 86400.0
_RATE = re.compile(r"([0-9]{1,6})/([smh])")
_SPAN = {"s": 1.0, "m": 60.0, "h": 3600.0}


def rate(text: str) -> Rate:
    """``30/m``: so many in a second, minute or hour."""
    parts = _RATE.fullmatch(text)
    if parts is None or not int(parts[1]):
        raise ValueError("is not a rate; write it like 30/m, with s, m or h")
    return Rate(int(parts[1]), _SPAN[parts[2]])


def _secret(value: str) -> None:
    if len(value) < 16:
        raise ValueError("has fewer than 16 characters, which can be guessed")


class Hook:
    """Fields of ``parking.webhook``."""

    URL = Field(
        "url",
        Secret(values.url),
        SecretRef(),
        "Where a POST goes for each call that begins to wait.",
        required=True,
    )
    SECRET = Field(
        "secret",
        Secret(_secret),
        SecretRef(),
        "What each POST is signed with (HMAC-SHA256).",
        required=True,
    )
    ARGUMENTS = Field("arguments", Flag(), False, "true: the POST holds the arguments too.")


WEBHOOK = Record(
    "a mapping",
    every(Hook),
    lambda got: Webhook(got[Hook.URL], got[Hook.SECRET], got[Hook.ARGUMENTS]),
)


class Parked:
    """Fields of ``parking``."""

    HOLD = Field(
        "hold",
        duration(0, 3600),
        ParkingConfig().hold,
        "How long a request that waits for a person is held open.",
    )
    EXPIRE = Field(
        "expire",
        duration(1, 30 * _DAY),
        ParkingConfig().expire,
        "How long a person has to answer, and then the agent to use the approval.",
    )
    MAX_WAITING = Field(
        "max_waiting",
        Whole(1, 1000),
        ParkingConfig().max_waiting,
        "How many calls of one principal may wait at once.",
    )
    RATE = Field(
        "rate",
        Text("a rate such as 30/m", rate, {"type": "string", "pattern": r"^[0-9]{1,6}/[smh]$"}),
        ParkingConfig().rate,
        "How many calls of one principal may begin to wait in that time.",
    )
    REDACT = Field(
        "redact",
        GLOBS,
        (),
        "Arguments that nobody is shown and nothing keeps; globs over names and dotted paths.",
    )
    WEBHOOK = Field("webhook", WEBHOOK, None, "Who is told of each call that begins to wait.")
    ELICIT = Field(
        "elicit",
        Flag(),
        False,
        "true: whoever runs the calling client may answer too, by elicitation.",
    )


PARKING = Record(
    "a mapping",
    every(Parked),
    lambda got: ParkingConfig(
        hold=got[Parked.HOLD],
        expire=got[Parked.EXPIRE],
        max_waiting=got[Parked.MAX_WAITING],
        rate=got[Parked.RATE],
        redact=got[Parked.REDACT],
        webhook=got[Parked.WEBHOOK],
        elicit=got[Parked.ELICIT],
    ),
)
