"""One written value to what it means: pure functions that raise ``ValueError`` with what to do."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from sidecar.config.types import Listen

LONGEST_NAME = 32
RESERVED = "sidecar"
# A socket's path and its closing NUL fit into sockaddr_un.sun_path, 108 bytes on Linux.
LONGEST_SOCKET = 107

DURATION = r"^(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h))+$"
SIZE = r"^[0-9]+(?:\.[0-9]+)?(?:B|KB|MB|GB|KiB|MiB|GiB)?$"
NAME = r"^[A-Za-z0-9]+(?:(?:-|_(?!_))+[A-Za-z0-9]+)*$"
PRINCIPAL = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
SEPARATOR = r"^[_-]{1,8}$"
HEADER = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
ENV_NAME = r"^[^=\x00]+$"

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE_PARTS = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_BYTES = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
# What a leg writes itself, and what belongs to the connection (RFC 9110 section 7.6.1).
_OWN_HEADERS = {
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


def duration(text: str) -> float:
    """``30s 5m 24h 200ms 1.5s 1h30m`` in seconds."""
    if len(text) > 32 or not re.fullmatch(DURATION, text):
        raise ValueError("is not a duration; write it like 30s, 5m, 24h, 200ms or 1.5s")
    parts = _DURATION_PART.findall(text)
    return round(sum(float(number) * _SECONDS[unit] for number, unit in parts), 6)


def size(text: str) -> int:
    """``4MiB 64KiB 10MB 123`` in bytes."""
    parts = _SIZE_PARTS.fullmatch(text) if len(text) <= 32 else None
    if parts is None or parts[2] not in _BYTES:
        raise ValueError("is not a size; write it like 4MiB, 64KiB, 10MB, or a number of bytes")
    number = float(parts[1]) * _BYTES[parts[2]]
    if number != int(number):
        raise ValueError("is not a whole number of bytes")
    return int(number)


def listen(text: str) -> Listen:
    """``127.0.0.1:8808``, ``[::1]:8808``, ``localhost:0`` or ``unix:/path``."""
    if text.startswith("unix:"):
        return Listen(path=_socket(text.removeprefix("unix:")))
    if "://" in text:
        raise ValueError("is a URL; write the address alone, such as 127.0.0.1:8808")
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise ValueError("has no port; write it like 127.0.0.1:8808, [::1]:8808 or unix:/path")
    if host in ("", "*"):
        raise ValueError(
            f"names no address; write 127.0.0.1:{port_text} for this machine alone, "
            f"or 0.0.0.0:{port_text} for every network"
        )
    if not re.fullmatch("[0-9]{1,5}", port_text) or int(port_text) > 65535:
        raise ValueError("has no port between 0 and 65535 after its last colon")
    return Listen(host=_host(host), port=int(port_text))


def _socket(text: str) -> Path:
    if not text.startswith("/") or "\0" in text:
        raise ValueError("needs an absolute path after unix:, such as unix:/run/sidecar/mcp.sock")
    path = Path("/" + text.lstrip("/"))
    if len(str(path).encode()) > LONGEST_SOCKET:
        raise ValueError(f"is too long: a socket's path has at most {LONGEST_SOCKET} bytes")
    return path


def _host(text: str) -> str:
    import ipaddress

    bracketed = text.startswith("[") and text.endswith("]")
    bare = text[1:-1] if bracketed else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        # Resolvers read 127.1 and 0177.0.0.1 as addresses; nobody should have to.
        number_like = bare.rstrip(".").rpartition(".")[2].isdigit()
        if bracketed or number_like or len(bare) > 253 or not _HOST_NAME.fullmatch(bare):
            raise ValueError("is not an address or a host name with a port") from None
        return bare
    if bracketed != (address.version == 6):
        raise ValueError("is not an address: IPv6 goes in brackets, as in [::1]:8808, IPv4 not")
    return bare


def host_name(text: str) -> str:
    """A host as a URL has it, without a port: ``mcp.example.com``, ``10.0.0.7``, ``[::1]``."""
    if "*" in text:
        raise ValueError("is a pattern; write each name, since a pattern could be anybody's name")
    if "/" in text:
        raise ValueError("is more than a host; write the name alone, such as mcp.example.com")
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and ":" not in host.rpartition("]")[2]:
        raise ValueError(f"has a port; write {host}, which is served at any port")
    try:
        _host(text)
    except ValueError:
        raise ValueError(
            "is not a host name, an IPv4 address or an IPv6 address in brackets"
        ) from None
    return text


def is_local(address: Listen) -> bool:
    """Whether only this machine can reach it: a unix socket, or loopback."""
    import ipaddress

    if address.path is not None or address.host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(address.host)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def store(text: str) -> str:
    """``memory``, ``sqlite:/absolute/path`` with extra slashes collapsed, ``postgresql://…``, or
    the URL of a store that an installed package brings. Messages repeat nothing of the text."""
    import os.path

    if text == "memory":
        return text
    scheme, colon, rest = text.partition(":")
    if colon and scheme in ("postgresql", "postgres"):
        return f"postgresql:{_postgres(rest)}"
    if not colon or scheme != "sqlite":
        if colon and _brought(scheme):
            return text
        raise ValueError(
            "is not a store; write memory, sqlite:///absolute/path.db or postgresql://host/database"
        )
    if rest in (":memory:", "//:memory:", "///:memory:"):
        raise ValueError("is not a file; write memory")
    if not rest.startswith("/") or "\0" in rest or "?" in rest:
        raise ValueError("needs an absolute path, such as sqlite:///var/lib/sidecar/state.db")
    path = os.path.normpath("/" + rest.lstrip("/"))
    if path == "/" or rest.endswith("/"):
        raise ValueError("names a folder; name a file, such as sqlite:///var/lib/sidecar/state.db")
    return f"sqlite:{path}"


def _postgres(rest: str) -> str:
    """What follows the scheme of a PostgreSQL URL; the driver reads it."""
    if any(c <= " " or c == "\x7f" for c in rest):
        raise ValueError("has a space or a control character in it; write %20 for a space")
    try:
        parts = urlsplit(f"postgresql:{rest}")
        parts.port  # noqa: B018  it is what raises
    except ValueError:
        raise ValueError("is not a URL; its host or port cannot be read") from None
    if not rest.startswith("//") or not parts.path.strip("/"):
        raise ValueError("names no database; write postgresql://host/database")
    if parts.fragment:
        raise ValueError("has a # in it; write %23 for one in a password")
    return rest


def _brought(scheme: str) -> bool:
    """Whether an installed package brings a store for URLs of this scheme."""
    from importlib.metadata import entry_points

    return any(point.name == scheme for point in entry_points(group="sidecar.stores"))


def shared(store: str) -> bool:
    """Whether other nodes may use a store of this URL: all but ours for one machine are."""
    return store.partition(":")[0] not in ("memory", "sqlite")


_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """``scheme://host[:port]`` of an ``http`` or ``https`` URL: lower case, no default port.

    Raises ValueError for what has no host, or a port that cannot be read.
    """
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise ValueError("is not an http:// or https:// URL with a host")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + (
        "" if port is None or port == _DEFAULT_PORTS[parts.scheme] else f":{port}"
    )


def origin(text: str) -> str:
    """An origin, written as ``https://host`` or ``https://host:port``."""
    parts = urlsplit(url(text))
    if parts.path not in ("", "/") or parts.query or "?" in text:
        raise ValueError("is more than an origin; write it like https://mcp.example.com")
    return origin_of(text)


def store_keys(value: str) -> tuple[bytes, ...]:
    """Keys of 32 bytes in base64, separated by spaces or line ends; the first one seals."""
    import base64

    keys = []
    for word in value.split():
        try:
            key = base64.b64decode(word, validate=True)
        except ValueError:
            key = b""
        if len(key) != 32:
            raise ValueError(
                "is not a store key; make one with `openssl rand -base64 32`, and keep former "
                "ones after it"
            )
        keys.append(key)
    if len(set(keys)) != len(keys):
        raise ValueError("holds the same key twice")
    return tuple(keys)


def store_key(value: str) -> None:
    """At least one key."""
    if not store_keys(value):
        raise ValueError("holds no key")


def server_name(name: str) -> None:
    """A name of the shared name space of servers and harnesses."""
    if name == RESERVED:
        raise ValueError(f'"{RESERVED}" is reserved for the sidecar itself; use another name')
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a name has at most {LONGEST_NAME} characters, this one {len(name)}")
    if not re.fullmatch(NAME, name):
        raise ValueError(
            "a name is letters and digits of A-Z a-z 0-9, with - and single _ inside; "
            "this one is not"
        )


def principal_name(name: str) -> None:
    """An agent's name."""
    if not re.fullmatch(PRINCIPAL, name):
        raise ValueError(
            "an agent's name is up to 64 of A-Z a-z 0-9 . _ @ - and begins with a letter or digit"
        )


def separator(text: str) -> str:
    """What stands between a server's name and its tool's."""
    if not re.fullmatch(SEPARATOR, text):
        raise ValueError("is 1 to 8 of _ and -, because model APIs take little else in a name")
    return text


def network(text: str) -> str:
    """An address, or a network such as ``10.0.0.0/8``."""
    import ipaddress

    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError("is no address or network; write it like 10.0.0.5 or 10.0.0.0/8") from (
            None
        )


def url(text: str) -> str:
    """An ``http`` or ``https`` address with no password in it."""
    if any(c <= " " or c == "\x7f" for c in text):
        raise ValueError("has a space or a control character in it")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL; its host or port cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("is not an http:// or https:// URL with a host")
    if "@" in parts.netloc:
        raise ValueError("has a user or password in it; send it in headers instead")
    if parts.fragment or text.endswith("#"):
        raise ValueError("has a #fragment, which is never sent; remove it")
    return text


def header_name(name: str) -> None:
    """A header an operator may add to every request."""
    if not re.fullmatch(HEADER, name):
        raise ValueError("is not a header name")
    if name.lower() in _OWN_HEADERS:
        raise ValueError(f"{name.lower()} is written by the sidecar itself; remove it")


def header(name: str) -> str:
    """As ``header_name``, for a value that is one."""
    if not re.fullmatch(HEADER, name):
        raise ValueError("is not a header name")
    header_name(name)
    return name


def header_value(value: str) -> None:
    """RFC 9110 section 5.5, without its obsolete bytes."""
    if any((c < " " and c != "\t") or c == "\x7f" for c in value):
        raise ValueError("has a line break or another control character, which no header may have")
    if value != value.strip(" \t"):
        raise ValueError("begins or ends with a space, which no header keeps")


def env_name(name: str) -> None:
    """A variable of a child's environment."""
    if not re.fullmatch(ENV_NAME, name):
        raise ValueError("is not a name of an environment variable")


def env_value(value: str) -> None:
    """What an operating system can pass on."""
    if "\0" in value:
        raise ValueError("has a NUL in it, which no environment variable can hold")


def token(value: str) -> None:
    """A bearer token (RFC 6750 section 2.1, and any other visible ASCII)."""
    if not all("!" <= c <= "~" for c in value):
        raise ValueError("has a space or a character that a bearer token cannot have")


def glob(text: str) -> str:
    """A pattern over names: ``*``, ``?`` and ``[…]``."""
    if not text or len(text) > 256 or any(c < " " for c in text):
        raise ValueError("is not a pattern; write a name, or a part of it with *")
    return text
