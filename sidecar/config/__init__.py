"""sidecar.yaml: typed, frozen, every error at once.

Importing this package loads the types alone; YAML and the table of keys are imported by the
first :func:`load`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sidecar.config.faults import ConfigErrors, Fault
from sidecar.config.types import (
    AdminConfig,
    AgentConfig,
    AnnotationOverride,
    ApproverConfig,
    AuditConfig,
    CaptureConfig,
    CheckoutConfig,
    Config,
    CredentialConfig,
    HarnessConfig,
    LabelsConfig,
    Limits,
    Listen,
    LogConfig,
    ParkingConfig,
    PolicyConfig,
    ProxyConfig,
    ProxyLimits,
    Rate,
    Retry,
    RuntimeServers,
    SecretRef,
    ServerConfig,
    TelemetryConfig,
    Webhook,
)

__all__ = [
    "AdminConfig",
    "AgentConfig",
    "AnnotationOverride",
    "ApproverConfig",
    "AuditConfig",
    "CaptureConfig",
    "CheckoutConfig",
    "Config",
    "ConfigErrors",
    "CredentialConfig",
    "Fault",
    "HarnessConfig",
    "LabelsConfig",
    "Limits",
    "Listen",
    "LogConfig",
    "ParkingConfig",
    "PolicyConfig",
    "ProxyConfig",
    "ProxyLimits",
    "Rate",
    "Retry",
    "RuntimeServers",
    "SecretRef",
    "ServerConfig",
    "TelemetryConfig",
    "Webhook",
    "find",
    "load",
    "parse_listen",
]


def load(
    path: Path | None,
    *,
    mcp_configs: Sequence[Path] = (),
    environ: Mapping[str, str],
    listen: str | None = None,
    check_secrets: bool = True,
) -> Config:
    """The configuration: the YAML file's, then the servers of ``mcpServers`` files.

    Args:
        path: ``None`` for the defaults alone. Relative paths in a file belong to its folder.
        mcp_configs: ``--mcp-config`` files; their servers come after the YAML file's.
        environ: where ``from_env``, ``${VAR}``, ``~`` and the XDG folders are looked up.
        listen: ``--listen``, in place of the file's and under the same checks.
        check_secrets: verbs that only ask a running sidecar have not its secrets; with
            ``False`` a reference is taken unread.

    Raises:
        ConfigErrors: with all faults of all files.
    """
    from sidecar.config import loader

    return loader.load(
        path,
        mcp_configs=mcp_configs,
        environ=environ,
        listen=listen,
        check_secrets=check_secrets,
    )


def find(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file to load: ``--config``, ``$SIDECAR_CONFIG``, ``./sidecar.yaml``, ``/etc``'s."""
    from sidecar.config import places

    return places.find(explicit, environ, cwd)


def parse_listen(text: str) -> Listen:
    """A listen address.

    Raises:
        ValueError: what to write instead.
    """
    from sidecar.config import values

    return values.listen(text)
