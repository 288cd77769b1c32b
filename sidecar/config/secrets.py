"""Secret values from environment variables and files."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sidecar.config.types import SecretRef
from sidecar.ports.secrets import SecretError

LARGEST = 64 << 10
"""No secret file is larger, in bytes."""


class EnvFileSecrets:
    """The :class:`sidecar.ports.secrets.Secrets` of a configuration file.

    Files are read at each call, so that a rotated secret is seen; nothing is kept.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def read(self, ref: SecretRef) -> str:
        """The value, its trailing line ends stripped, in the reference's template.

        Raises:
            SecretError: it is missing, empty or unreadable; names where, never what.
        """
        if ref.literal is not None:
            return ref.literal
        if ref.from_env is not None:
            value = self._variable(ref.from_env)
        elif ref.from_file is not None:
            value = _file(ref.from_file)
        else:
            raise SecretError("the secret has neither from_env nor from_file")
        return value if ref.template is None else ref.template.replace("{}", value, 1)

    def _variable(self, name: str) -> str:
        value = self._environ.get(name)
        if value is None:
            raise SecretError(f"the environment variable {name} is not set")
        return _clean(value, f"the environment variable {name}")


def _file(path: Path) -> str:
    """A regular file's text. Anything else could block for ever, or never end."""
    try:
        # A pipe without a writer blocks the open itself; the flag makes it return.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SecretError(f"{path} is not a regular file")
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a path"
        raise SecretError(f"{path} cannot be read: {why}") from None
    if len(data) > LARGEST:
        raise SecretError(f"{path} is larger than {LARGEST >> 10} KiB")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SecretError(f"{path} is not UTF-8 text") from None
    return _clean(text, str(path))


def _clean(value: str, where: str) -> str:
    stripped = value.rstrip("\r\n")
    if not stripped:
        raise SecretError(f"{where} is empty")
    return stripped
