"""Sends encoded requests to an OTLP receiver over HTTP (OTLP specification, OTLP/HTTP)."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp

import sidecar
from sidecar.telemetry.environ import SettingError
from sidecar.telemetry.otlp.proto import rejected
from sidecar.telemetry.otlp.settings import OtlpSettings

RETRYABLE: Final = frozenset((429, 502, 503, 504))
_MOST_ANSWER: Final = 64 << 10
_SMALL: Final = 16 << 10
"""Bytes that are compressed in place: a thread costs more."""
_LEVEL: Final = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one request. ``why`` is empty when it was taken.

    ``again``: it may be sent once more, after so many seconds where ``after`` is set.
    ``rejected`` is how many records the receiver did not take although it took the request.
    """

    why: str = ""
    again: bool = False
    after: float | None = None
    rejected: int = 0


class OtlpHttp:
    """One receiver's connections. Used inside a running loop; ``send`` never raises."""

    def __init__(self, settings: OtlpSettings) -> None:
        self.settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Read the certificates; connects to nobody.

        Raises:
            SettingError: they cannot be used.
        """
        # Reading the system's certificates takes tens of milliseconds.
        secure = self.settings.url.startswith("https:")
        context = await asyncio.to_thread(_tls, self.settings) if secure else True
        headers = {
            **self.settings.headers,
            "content-type": "application/x-protobuf",
            "user-agent": f"mcp-sidecar/{sidecar.__version__} (OTLP exporter)",
        }
        if self.settings.compression != "none":
            headers["content-encoding"] = self.settings.compression
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=2),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def close(self) -> None:
        """Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, body: bytes, timeout: float) -> Sent:
        """Send one request, within so many seconds. Cancelling ends it."""
        session = self._session
        if session is None:
            return Sent("it is closed")
        try:
            data = await self._compressed(body)
            async with session.post(
                self.settings.url,
                data=data,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=max(timeout, 0.001)),
            ) as response:
                answer = await response.content.read(_MOST_ANSWER)
                return _sent(response.status, response.headers.get("Retry-After"), answer)
        except TimeoutError:
            return Sent("it does not answer in time", again=True)
        except (aiohttp.ClientConnectionError, OSError) as error:
            return Sent(f"it cannot be reached ({type(error).__name__})", again=True)
        except (aiohttp.ClientError, ValueError) as error:
            return Sent(f"it cannot be spoken to ({type(error).__name__})")

    async def _compressed(self, body: bytes) -> bytes:
        work = _COMPRESS.get(self.settings.compression)
        if work is None:
            return body
        return work(body) if len(body) <= _SMALL else await asyncio.to_thread(work, body)


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0)


def _deflate(body: bytes) -> bytes:
    return zlib.compress(body, _LEVEL)


_COMPRESS: Final[Mapping[str, Callable[[bytes], bytes]]] = {"gzip": _gzip, "deflate": _deflate}


def _sent(status: int, after: str | None, answer: bytes) -> Sent:
    if 200 <= status < 300:
        count, _ = rejected(answer)
        return Sent(rejected=count)
    again = status in RETRYABLE
    return Sent(f"it answers {status}", again=again, after=_seconds(after) if again else None)


def _seconds(value: str | None) -> float | None:
    """Of a ``Retry-After``: seconds, or a date (RFC 9110 §10.2.3)."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value.strip()[:6])
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max((when - datetime.now(UTC)).total_seconds(), 0.0)


def _tls(settings: OtlpSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.certificate)
    except (OSError, ValueError):
        raise SettingError(
            "OTEL_EXPORTER_OTLP_CERTIFICATE", f"{settings.certificate} is no PEM certificate"
        ) from None
    if settings.client_certificate is not None:
        try:
            context.load_cert_chain(settings.client_certificate, settings.client_key)
        except (OSError, ValueError):
            raise SettingError(
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
                "the certificate and OTEL_EXPORTER_OTLP_CLIENT_KEY do not fit each other",
            ) from None
    return context
