"""CEL's encoders extension: base64, with or without padding when reading."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.limits import Budget, check_string
from sidecar.policy.cel.types import BYTES, STRING


def _encode(budget: Budget, value: bytes) -> str:
    check_string(len(value) * 4 // 3 + 4)
    budget.text(2 * len(value))
    return base64.b64encode(value).decode("ascii")


def _decode(budget: Budget, text: str) -> bytes:
    budget.text(2 * len(text))
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise EvalError("invalid_argument", "a string is not base64") from None


FUNCTIONS: Final = (
    Function("base64.encode", Overload((BYTES,), STRING, _encode)),
    Function("base64.decode", Overload((STRING,), BYTES, _decode)),
)
