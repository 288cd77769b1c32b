"""Revisions and methods, beside the reference SDK's tables."""

from __future__ import annotations

import mcp_types.methods
import mcp_types.version
import pytest
from mcp.shared.inbound import NAME_BEARING_METHODS

from sidecar.mcp import methods, versions
from sidecar.model import Era


def test_the_revisions_are_the_references() -> None:
    assert versions.LEGACY_VERSIONS == mcp_types.version.HANDSHAKE_PROTOCOL_VERSIONS
    assert versions.MODERN_VERSIONS == mcp_types.version.MODERN_PROTOCOL_VERSIONS
    assert versions.LATEST_LEGACY == "2025-11-25"
    assert versions.MODERN_VERSION == "2026-07-28"


@pytest.mark.parametrize(
    ("value", "era"),
    [
        (None, Era.LEGACY),
        ("2024-11-05", Era.LEGACY),
        ("2025-11-25", Era.LEGACY),
        ("2026-07-28", Era.MODERN),
        ("1900-01-01", Era.MODERN),
        ("", Era.MODERN),
        ("2025-11-25, 2026-07-28", Era.MODERN),
    ],
)
def test_the_era_of_a_header(value: str | None, era: Era) -> None:
    assert versions.era_of_header(value) is era


@pytest.mark.parametrize("version", versions.LEGACY_VERSIONS)
def test_a_revision_that_we_speak_is_agreed_to(version: str) -> None:
    assert versions.negotiate(version) == version


@pytest.mark.parametrize("requested", ["2026-07-28", "1900-01-01", "", None, 7, ["2025-11-25"]])
def test_any_other_gets_our_latest_of_the_era(requested: object) -> None:
    assert versions.negotiate(requested) == "2025-11-25"


def test_the_methods_are_the_references() -> None:
    for known in mcp_types.version.KNOWN_PROTOCOL_VERSIONS:
        era = versions.era_of_header(known)
        for method in mcp_types.methods.SPEC_CLIENT_METHODS:
            expected = (method, known) in mcp_types.methods.CLIENT_REQUESTS
            assert methods.exists(era, method) == expected, (method, known)
    assert methods.LEGACY_REQUESTS | methods.MODERN_REQUESTS == (
        mcp_types.methods.SPEC_CLIENT_METHODS
    )
    assert not methods.exists(Era.MODERN, "tasks/get")


def test_the_named_methods_include_the_references() -> None:
    assert {
        method: key for method, key in methods.NAME_PARAM.items() if not method.startswith("tasks/")
    } == NAME_BEARING_METHODS


def test_log_levels_have_an_order() -> None:
    assert methods.severe_enough("error", "warning")
    assert methods.severe_enough("warning", "warning")
    assert not methods.severe_enough("info", "warning")
    assert methods.severe_enough("loud", "emergency")
    assert methods.severe_enough(None, "emergency")
    assert not methods.severe_enough("emergency", None)
    assert methods.lowest_level("error", None, "debug", "info") == "debug"
    assert methods.lowest_level("error", "no such") == "error"
    assert methods.lowest_level(None) is None
    assert methods.lowest_level() is None
