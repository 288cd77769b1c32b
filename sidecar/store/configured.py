"""The store that a configuration names, its secrets sealed."""

from __future__ import annotations

from sidecar.config import Config, values
from sidecar.ports.secrets import Secrets
from sidecar.store import open_store
from sidecar.store.sealed import Seal, SealedStore

NOTED = "seal/key"
"""Where in the store it stands which key seals, sealed with it itself."""


def configured_store(config: Config, secrets: Secrets) -> SealedStore:
    """Not opened yet. Arguments of calls that wait for approval, and results on their way to
    another node, are sealed too where others may read them.

    Raises:
        StoreError, SecretError, ValueError: the URL, the driver, or the key.
    """
    seal: Seal | None = None
    if config.store_key is not None:
        seal = Seal(values.store_keys(secrets.read(config.store_key)))
    also = ("calls/", "results/") if values.shared(config.store) else ()
    return SealedStore(open_store(config.store), seal, also=also, noted=NOTED)
