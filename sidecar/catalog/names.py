"""What a tool or prompt is called downstream, and which name somebody may have meant.

A name depends on the server's and the tool's own names alone, so that it is the same after a
restart, on every replica, and whatever other servers come and go. Model APIs accept
``[A-Za-z0-9_-]{1,64}`` and refuse a whole request over one name that does not fit.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import hashlib
import re
from collections.abc import Iterable
from itertools import islice

from sidecar.config import ServerConfig

_FITS = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_NOISE = re.compile(r"[^a-z0-9]")
_STEM = 55
_SHOWN = 80
_CANDIDATES = 2000
_COMPARED = 200


def fingerprint(server: str, tool: str) -> str:
    """Eight hex digits that tell two names apart when their readable part is the same."""
    data = f"{server}\0{tool}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:8]


def safe_name(server: str, tool: str, separator: str = "__") -> str:
    """The form for a name that does not fit: its readable part, cut, and the fingerprint."""
    stem = _UNFIT.sub("_", f"{server}{separator}{tool}"[:_STEM])
    return f"{stem}_{fingerprint(server, tool)}"


def fits(name: str) -> bool:
    """Whether a model API takes the name."""
    return _FITS.fullmatch(name) is not None


def catalog_name(server: str, tool: str, separator: str = "__") -> str:
    """``server__tool`` where that fits a model API, else the safe form."""
    plain = f"{server}{separator}{tool}"
    return plain if fits(plain) else safe_name(server, tool, separator)


@functools.lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))


@functools.lru_cache(maxsize=8192)
def matches(globs: tuple[str, ...], name: str) -> bool:
    """Whether some glob matches the whole name, letters of both cases told apart."""
    return any(_glob(pattern).match(name) for pattern in globs)


def offered(config: ServerConfig, tool: str) -> bool:
    """Whether ``only`` and ``except`` leave the tool in."""
    if config.only is not None and not matches(config.only, tool):
        return False
    return config.except_ is None or not matches(config.except_, tool)


def shown(name: str) -> str:
    """A name from outside, fit to stand in a message."""
    text = name if len(name) <= _SHOWN else name[:_SHOWN] + "…"
    return repr(text)


def _plain(name: str) -> str:
    return _NOISE.sub("", name.casefold())


def closest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """The candidates that were most likely meant. Its cost is bounded, whatever is asked."""
    name = name[:_SHOWN]
    pool = list(islice(candidates, _CANDIDATES))
    wanted = _plain(name)
    same = [c for c in pool if wanted and (p := _plain(c)) and (p in wanted or wanted in p)]
    if same:
        return sorted(same, key=lambda c: (abs(len(c) - len(name)), c))[:limit]
    return difflib.get_close_matches(name, pool[:_COMPARED], n=limit, cutoff=0.6)
