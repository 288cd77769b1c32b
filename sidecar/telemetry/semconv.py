"""The names of :mod:`sidecar.semconv`, which is at the bottom floor: rooms below set them too."""

from sidecar.semconv import GenAi, Key, Mcp, Names

__all__ = ["GenAi", "Key", "Mcp", "Names"]
