"""Where secret values come from."""

from __future__ import annotations

from typing import Protocol

from sidecar.config import SecretRef


class Secrets(Protocol):
    """Resolves references. A value is never logged, shown or kept longer than it is needed."""

    def read(self, ref: SecretRef) -> str:
        """The value now (files are read again, so that a rotated secret is seen).

        Raises:
            SecretError: names the variable or file, never its content.
        """
        ...


class SecretError(Exception):
    """A reference that cannot be resolved."""
