"""The one place that admits calls."""

from sidecar.gate.gate import PolicyGate
from sidecar.gate.house import Gatehouse
from sidecar.gate.open import OpenGate
from sidecar.gate.parking import Asked, NoParking, Parking

__all__ = ["Asked", "Gatehouse", "NoParking", "OpenGate", "Parking", "PolicyGate"]
