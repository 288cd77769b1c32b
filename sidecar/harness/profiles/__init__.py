"""The coding agents we know, by the name that ``profile:`` has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sidecar.harness.profiles.claude import CLAUDE
from sidecar.harness.profiles.codex import CODEX
from sidecar.harness.profiles.gemini import GEMINI
from sidecar.harness.profiles.generic import GENERIC
from sidecar.harness.profiles.opencode import OPENCODE
from sidecar.harness.profiles.profile import (
    Asking,
    Extract,
    Guarded,
    Package,
    Profile,
    ProfileError,
)
from sidecar.harness.profiles.qwen import QWEN

__all__ = ["PROFILES", "Asking", "Extract", "Guarded", "Package", "Profile", "ProfileError"]

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {profile.name: profile for profile in (CLAUDE, CODEX, GEMINI, OPENCODE, QWEN, GENERIC)}
)
"""Every profile there is."""
