"""``audit``: where the audit trail is kept."""

from __future__ import annotations

from typing import Final

from sidecar.config.nodes import Mapping, Node, Scalar
from sidecar.config.record import Field, Got, Record, every
from sidecar.config.shapes import BAD, At, Bad, Choice, FilePath, Schema, Shape, size
from sidecar.config.types import AuditConfig

OFF, OTLP = "off", "otlp"


class Kept:
    """Fields of ``audit`` as a mapping."""

    FILE = Field("file", FilePath(), None, "The file that records are appended to.", required=True)
    ROTATE = Field(
        "rotate",
        size(4 << 10, 1 << 40),
        AuditConfig().rotate,
        "How large the file grows before it is set aside and a new one goes on.",
    )
    UNWRITTEN = Field(
        "unwritten",
        Choice("deny", "allow"),
        AuditConfig().unwritten,
        "What becomes of a call whose record cannot be written.",
    )


def _kept(got: Got) -> AuditConfig:
    unwritten = got[Kept.UNWRITTEN]
    return AuditConfig(
        "file", got[Kept.FILE], got[Kept.ROTATE], "allow" if unwritten == "allow" else "deny"
    )


_MAPPING: Final = Record("a file, otlp, off, or a mapping", every(Kept), _kept)


class Audit(Shape[AuditConfig]):
    """``FILE``, ``otlp``, ``off``, or a mapping that says more about the file."""

    def read(self, node: Node, at: At) -> AuditConfig | Bad:
        if isinstance(node, Mapping):
            return _MAPPING.read(node, at)
        if isinstance(node, Scalar) and (node.value is False or node.value == OFF):
            return AuditConfig()
        if isinstance(node, Scalar) and node.value == OTLP:
            return AuditConfig("otlp")
        file = FilePath().read(node, at)
        return BAD if isinstance(file, Bad) else AuditConfig("file", file)

    def schema(self) -> Schema:
        return {"anyOf": [FilePath().schema(), {"const": False}, _MAPPING.schema()]}
