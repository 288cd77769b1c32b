"""The one place that admits calls."""

from sidecar.gate.gate import PolicyGate
from sidecar.gate.ledger import Ledger
from sidecar.gate.open import OpenGate
from sidecar.gate.pins import Pins
from sidecar.gate.records import Inputs, Records

__all__ = ["Inputs", "Ledger", "OpenGate", "Pins", "PolicyGate", "Records"]
