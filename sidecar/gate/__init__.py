"""The one place that admits calls."""

from sidecar.gate.open import OpenGate

__all__ = ["OpenGate"]
