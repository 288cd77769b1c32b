"""``OTEL_EXPORTER_OTLP_*``: where one signal goes, by the exporter specification."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from sidecar.telemetry.environ import SettingError, milliseconds, text

Signal: TypeAlias = Literal["traces", "metrics", "logs"]
Compression: TypeAlias = Literal["none", "gzip", "deflate"]

DEFAULT_ENDPOINT: Final = "http://localhost:4318"
DEFAULT_TIMEOUT: Final = 10.0
HTTP: Final = "http/protobuf"
GRPC: Final = "grpc"

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_COMPRESSIONS: Final = ("none", "gzip", "deflate")


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """Where to send, and how. ``headers`` may hold secrets and so are left out of ``repr``;
    ``timeout`` is seconds for one batch, tries again included."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = DEFAULT_TIMEOUT
    compression: Compression = "none"
    certificate: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None

    @property
    def shown(self) -> str:
        """The address without what may be secret in it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def given(signal: Signal, environ: Mapping[str, str]) -> bool:
    """Whether an endpoint is set for this signal."""
    return bool(_either(signal, "ENDPOINT", environ)[1])


def protocol(signal: Signal, environ: Mapping[str, str]) -> str:
    """``http/protobuf`` or ``grpc``.

    Raises:
        SettingError: it is another one.
    """
    name, value = _either(signal, "PROTOCOL", environ)
    if value in ("", HTTP):
        return HTTP
    if value == GRPC:
        return GRPC
    raise SettingError(name, f"{value!r} is not spoken here; use {HTTP} or {GRPC}")


def settings(signal: Signal, environ: Mapping[str, str]) -> OtlpSettings:
    """Of OTLP over HTTP; the signal's own variables win over those for all signals.

    Raises:
        SettingError: the endpoint is no http(s) URL, a header cannot be sent, the compression is
            unknown, a file is missing.
    """
    return OtlpSettings(
        url=_url(signal, environ),
        headers=_headers(*_either(signal, "HEADERS", environ)),
        timeout=_timeout(*_either(signal, "TIMEOUT", environ)),
        compression=_compression(*_either(signal, "COMPRESSION", environ)),
        certificate=_file(*_either(signal, "CERTIFICATE", environ)),
        client_certificate=_file(*_either(signal, "CLIENT_CERTIFICATE", environ)),
        client_key=_file(*_either(signal, "CLIENT_KEY", environ)),
    )


def _either(signal: Signal, key: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The variable that counts, and its value; empty for neither."""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_{key}"
    if value := text(own, environ):
        return own, value
    shared = f"OTEL_EXPORTER_OTLP_{key}"
    return shared, text(shared, environ)


def _url(signal: Signal, environ: Mapping[str, str]) -> str:
    name, value = _either(signal, "ENDPOINT", environ)
    url = value or DEFAULT_ENDPOINT
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingError(name, "is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise SettingError(name, "is not a URL such as http://localhost:4318")
    if name.endswith(f"{signal.upper()}_ENDPOINT"):
        # As it stands; without a path it is the root.
        return url if parts.path else parts._replace(path="/").geturl()
    return parts._replace(path=f"{parts.path.rstrip('/')}/v1/{signal}").geturl()


def _headers(name: str, value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in value.split(","):
        if not entry.strip():
            continue
        key, equals, content = entry.partition("=")
        key, content = unquote(key.strip()).lower(), unquote(content.strip())
        # Neither is told: whoever forgot the name wrote a secret here.
        if not equals or not _TOKEN.fullmatch(key):
            raise SettingError(name, "is a list such as api-key=secret,other=value")
        if any(ord(char) < 0x20 or ord(char) == 0x7F for char in content):
            raise SettingError(name, f"the value of {key} cannot be sent in a header")
        found[key] = content
    return found


def _timeout(name: str, value: str) -> float:
    return milliseconds(name, {name: value}, DEFAULT_TIMEOUT, least=1)


def _compression(name: str, value: str) -> Compression:
    if not value:
        return "none"
    if value not in _COMPRESSIONS:
        raise SettingError(name, f"{value!r} is none of {', '.join(_COMPRESSIONS)}")
    return cast("Compression", value)


def _file(name: str, value: str) -> Path | None:
    if not value:
        return None
    path = Path(value)
    if not path.is_file():
        raise SettingError(name, f"there is no file {value}")
    return path
