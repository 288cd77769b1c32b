"""Stores: ``memory``, ``sqlite`` and ``postgresql`` here, others by entry point ``sidecar.stores``.

The name of an entry point is the scheme of a store's URL; what it loads is called with the URL
and returns a ``Store``, not yet opened. It raises StoreError when it cannot use the URL.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from sidecar.ports.store import Store, StoreError

GROUP = "sidecar.stores"
# Also registered in the package's metadata, but found without a search through all of it, and
# nobody else's package can take their place.
BUILT_IN = {
    "memory": "sidecar.store.memory",
    "sqlite": "sidecar.store.sqlite",
    "postgresql": "sidecar.store.postgres",
    "postgres": "sidecar.store.postgres",
}

Factory = Callable[[str], Store]


def open_store(url: str) -> Store:
    """The store of a URL such as ``memory`` or ``sqlite:///var/lib/sidecar/state.db``.

    Not opened yet. Raises StoreError, which never repeats the URL: it may hold a password.
    """
    scheme = url.partition(":")[0]
    if scheme in BUILT_IN:
        factory: Factory = importlib.import_module(BUILT_IN[scheme]).from_url
    else:
        factory = _outside(scheme)
    return factory(url)


def _outside(scheme: str) -> Factory:
    from importlib.metadata import entry_points

    found = sorted(entry_points(group=GROUP), key=lambda point: point.value)
    for point in found:
        if point.name == scheme:
            try:
                return cast(Factory, point.load())
            except Exception as error:  # somebody else's module
                raise StoreError(
                    f"the package that brings the store {scheme!r} cannot be loaded: {error!r}"
                ) from error
    known = ", ".join(sorted({*BUILT_IN, *(point.name for point in found)}))
    raise StoreError(
        f"there is no store {scheme!r}; there are {known}, and an installed package can add "
        f"others through the entry point group {GROUP}"
    )
