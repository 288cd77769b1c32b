"""Who tells: the OpenTelemetry resource that spans, metrics and logs share."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast
from urllib.parse import unquote

import sidecar
from sidecar.telemetry.environ import text

Attributes: TypeAlias = "dict[str, str | bool | int | float | Sequence[str]]"

SCOPE = "sidecar"
"""The name of our instrumentation scope."""
INSTANCE: Final = str(uuid.uuid4())
"""Tells two sidecars of one name apart, and one from the one that took its place."""


def said(environ: Mapping[str, str]) -> dict[str, str]:
    """What ``OTEL_RESOURCE_ATTRIBUTES`` holds: ``name=value,…``, values percent-encoded
    (OpenTelemetry's specification of the resource SDK). What is no pair is left out."""
    pairs = (entry.partition("=") for entry in text("OTEL_RESOURCE_ATTRIBUTES", environ).split(","))
    return {key.strip(): unquote(value.strip()) for key, equals, value in pairs if equals}


def attributes(name: str, environ: Mapping[str, str]) -> Attributes:
    """The attributes of the resource: the SDK's own and its detectors' (which
    ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_SERVICE_NAME`` and
    ``OTEL_EXPERIMENTAL_RESOURCE_DETECTORS`` rule), and who this sidecar is.

    ``name`` is the sidecar's, which is the service's where the environment says no other.
    The detectors read the process's own environment, whatever ``environ`` holds.
    """
    # Imported where telemetry is on: it costs a megabyte.
    from opentelemetry.sdk.resources import Resource

    found = cast("Attributes", dict(Resource.create().attributes))
    named = said(environ)
    if not text("OTEL_SERVICE_NAME", environ) and "service.name" not in named:
        found["service.name"] = name
    if "service.instance.id" not in named:
        found["service.instance.id"] = INSTANCE
    found.setdefault("service.version", sidecar.__version__)
    return found
