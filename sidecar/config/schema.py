"""The JSON Schema (2020-12) of ``sidecar.yaml``, made of the table that the loader reads by.

It cannot say all that the loader checks (what a pattern matches, what stands beside what), so
that a file it accepts may still have faults; a file that loads is always accepted.
"""

from __future__ import annotations

from sidecar.config.shapes import Schema
from sidecar.config.table import ROOT


def schema() -> Schema:
    """A schema that editors can use."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "sidecar.yaml",
        "description": "The configuration of the sidecar.",
        **ROOT.schema(),
        # An empty file is all defaults.
        "type": ["object", "null"],
    }
