"""Parked calls and their tickets: a call that a policy answers with ``ask`` waits for a person."""

from sidecar.parking.book import Missing
from sidecar.parking.machine import WrongState
from sidecar.parking.parking import Parking
from sidecar.parking.record import Parked, State

__all__ = ["Missing", "Parked", "Parking", "State", "WrongState"]
