"""Who watches which resource, counted, so that a server is asked once."""

from __future__ import annotations

from collections import Counter


class Watches:
    """Subscriptions of one leg: how often each caller asked for each URI."""

    def __init__(self) -> None:
        self._by_uri: dict[str, Counter[str]] = {}

    def __contains__(self, uri: str) -> bool:
        return uri in self._by_uri

    def uris(self) -> tuple[str, ...]:
        """Every watched URI, in the order in which they were first asked for."""
        return tuple(self._by_uri)

    def add(self, uri: str, who: str) -> bool:
        """Count one more; whether it is the first of all for this URI."""
        first = uri not in self._by_uri
        self._by_uri.setdefault(uri, Counter())[who] += 1
        return first

    def remove(self, uri: str, who: str) -> bool:
        """Count one less; whether nobody watches the URI any more. Unknown ones are ignored."""
        counts = self._by_uri.get(uri)
        if counts is None or who not in counts:
            return False
        counts[who] -= 1
        if counts[who] == 0:
            del counts[who]
        return self._drop_if_empty(uri)

    def forget(self, who: str) -> list[str]:
        """Remove everything of this caller; the URIs that nobody watches any more."""
        ended = []
        for uri, counts in list(self._by_uri.items()):
            if who in counts:
                del counts[who]
                if self._drop_if_empty(uri):
                    ended.append(uri)
        return ended

    def _drop_if_empty(self, uri: str) -> bool:
        if self._by_uri[uri]:
            return False
        del self._by_uri[uri]
        return True
