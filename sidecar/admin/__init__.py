"""What operators and the kubelet talk to; nothing here is reachable from the agent's listener."""

from __future__ import annotations

from sidecar.admin.client import AdminClient, AdminError, NotFound, Refused

__all__ = ["AdminClient", "AdminError", "NotFound", "Refused"]
