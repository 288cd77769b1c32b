"""The policy proxy that runs beside an AI agent."""

__version__ = "0.1.0"
