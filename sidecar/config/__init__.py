"""sidecar.yaml: typed, frozen, every error at once."""

from sidecar.config.types import (
    AdminConfig,
    AgentConfig,
    AnnotationOverride,
    Config,
    Limits,
    Listen,
    Retry,
    SecretRef,
    ServerConfig,
)

__all__ = [
    "AdminConfig",
    "AgentConfig",
    "AnnotationOverride",
    "Config",
    "Limits",
    "Listen",
    "Retry",
    "SecretRef",
    "ServerConfig",
]
