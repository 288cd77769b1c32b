"""Route, decide, send, answer: many servers behind one address."""

from sidecar.gateway.gateway import Gateway
from sidecar.gateway.listeners import Callback, Listening

__all__ = ["Callback", "Gateway", "Listening"]
