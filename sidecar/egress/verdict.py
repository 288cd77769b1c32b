"""The verdict on a URL and what its host resolves to: pure, total, and of one mind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sidecar.egress.addresses import CLASSES, RANK, Address, classify
from sidecar.egress.urls import REASONS, Ambiguous, Target, parse
from sidecar.model import JsonObject

MOST_ADDRESSES: Final = 64
"""Addresses of one answer that are looked at; an answer with more is refused."""

# Names that are no one's in DNS, or a platform's own. Whatever they resolve to, it is not public.
_NAMES: Final[dict[str, str]] = {
    "metadata.google.internal": "metadata",
    "metadata.goog": "metadata",
    "metadata.azure.internal": "metadata",
    "metadata.platformequinix.com": "metadata",
    "metadata.packet.net": "metadata",
    "instance-data": "metadata",
    "instance-data.ec2.internal": "metadata",
    "metadata": "metadata",
}
_SUFFIXES: Final[dict[str, str]] = {
    "localhost": "loopback",
    "localdomain": "loopback",
    "svc": "cluster",
    "cluster.local": "cluster",
    # kubernetes.default, which search domains complete.
    "default": "cluster",
    "local": "local",
    "internal": "local",
    "intranet": "local",
    "private": "local",
    "corp": "local",
    "home": "local",
    "home.arpa": "local",
    "lan": "local",
    "localnet": "local",
    "onion": "local",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the built-in check says.

    ``class_`` is the strictest of ``addresses.CLASSES`` that the host or one of its addresses
    has, and ``why`` the same word or, where it is ``ambiguous``, one of ``urls.REASONS``.
    ``target`` is ``None`` where the URL cannot be read. ``addresses`` are all that were given.
    """

    ok: bool
    why: str
    class_: str
    target: Target | None = None
    addresses: tuple[Address, ...] = ()

    @property
    def host(self) -> str:
        """The host as it is dialled; empty where the URL cannot be read."""
        return "" if self.target is None else self.target.host

    @property
    def port(self) -> int:
        """The port, 0 where the URL cannot be read."""
        return 0 if self.target is None else self.target.port

    @property
    def text(self) -> str:
        """The same for people; quotes nothing of the input."""
        if self.class_ == "ambiguous":
            return REASONS.get(self.why, CLASSES["ambiguous"])
        if self.why == "too-many":
            return f"the host has more than {MOST_ADDRESSES} addresses"
        if self.why == "port":
            return "the port is neither 80 nor 443, and no rule allows it"
        if self.class_ in ("unresolved", "public"):
            return CLASSES[self.class_]
        if self.class_ in ("cluster", "local"):
            # Of a name alone, whatever its addresses are.
            return f"the host {CLASSES[self.class_].removeprefix('it ')}"
        return f"the address is {self.class_}: {CLASSES[self.class_]}"

    def as_input(self) -> JsonObject:
        """The variable ``verdict`` of rules."""
        return {"ok": self.ok, "why": self.why, "class": self.class_}


def verdict(url: str, addresses: Iterable[str] = ()) -> Verdict:
    """The verdict on a URL whose host resolves to ``addresses``. Never raises.

    Where the host is an address itself, ``addresses`` is not looked at.
    """
    try:
        target = parse(url)
    except Ambiguous as error:
        return Verdict(False, error.why, "ambiguous")
    return judge(target, addresses)


def judge(target: Target, addresses: Iterable[str] = ()) -> Verdict:
    """The verdict on a target that was read already."""
    if target.address is not None:
        found: tuple[Address, ...] = (classify(str(target.address)),)
    else:
        given = list(addresses)
        found = tuple(classify(str(each)) for each in given[: MOST_ADDRESSES + 1])
        if len(found) > MOST_ADDRESSES:
            return Verdict(False, "too-many", "reserved", target, found[:MOST_ADDRESSES])
    classes = [address.class_ for address in found] or ["unresolved"]
    if target.address is None:
        classes.append(class_of_name(target.host))
    strictest = min(classes, key=RANK.__getitem__)
    return Verdict(strictest == "public", strictest, strictest, target, found)


def class_of_name(host: str) -> str:
    """The class that a name alone gives, ``public`` for one that DNS can have."""
    named = _NAMES.get(host)
    if named is not None:
        return named
    labels = host.split(".")
    for at in range(len(labels)):
        suffix = _SUFFIXES.get(".".join(labels[at:]))
        if suffix is not None:
            return suffix
    # A single label is completed by search domains, to whatever is near.
    return "cluster" if len(labels) == 1 else "public"
