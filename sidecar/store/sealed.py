"""A store whose secrets are encrypted: whoever reads the database does not read them.

AES-256-GCM with a key of 32 bytes. A sealed value is bound to its key in the store, so that it
cannot be moved to another, and says which key of ours sealed it, so that keys can be rotated:
the first of ``store_key`` seals, all of them open.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from sidecar.ports.store import ABSENT, ANY, Change, Record, Store, StoreError
from sidecar.store.checks import check_key

log = logging.getLogger("sidecar.store")

SEALED = ("secrets/",)
"""Prefixes whose values are always sealed."""

_MAGIC = b"sealed1\0"
_ID = 8
_NONCE = 12


class Aead(Protocol):
    """Of the cryptography package; its ``decrypt`` raises InvalidTag."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...
    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


class Seal:
    """Seals and opens values. ``keys`` are of 32 bytes; the first seals."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Raises StoreError when the cryptography package is not installed."""
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise StoreError(
                "store_key needs the cryptography package; pip install 'mcp-sidecar[seal]'"
            ) from None
        if not keys:
            raise ValueError("at least one key")
        self._invalid: type[Exception] = InvalidTag
        self._ciphers: dict[bytes, Aead] = {key_id(key): AESGCM(key) for key in keys}
        self._first = key_id(keys[0])

    def seal(self, key: str, value: bytes) -> bytes:
        """The value as it is stored under ``key``."""
        nonce = os.urandom(_NONCE)
        head = _MAGIC + self._first
        cipher = self._ciphers[self._first]
        return head + nonce + cipher.encrypt(nonce, value, head + key.encode())

    def open(self, key: str, sealed: bytes) -> bytes:
        """The value.

        Raises:
            StoreError: it was sealed with a key that is not here, under another key of the
                store, was changed, or was never sealed.
        """
        if not sealed.startswith(_MAGIC) or len(sealed) < len(_MAGIC) + _ID + _NONCE:
            raise StoreError(f"{key}: the value in the store is not sealed")
        start = len(_MAGIC)
        head, nonce = sealed[: start + _ID], sealed[start + _ID : start + _ID + _NONCE]
        cipher = self._ciphers.get(head[start:])
        if cipher is None:
            raise StoreError(
                f"{key}: it was sealed with a key that store_key does not have; put the former "
                "key after the current one, or use the one that the other sidecars have"
            )
        try:
            return cipher.decrypt(nonce, sealed[start + _ID + _NONCE :], head + key.encode())
        except self._invalid:
            raise StoreError(
                f"{key}: the sealed value was changed, or belongs to another key"
            ) from None

    def current(self, sealed: bytes) -> bool:
        """Whether the key that seals now sealed it."""
        return sealed.startswith(_MAGIC + self._first)


def is_sealed(value: bytes) -> bool:
    """Whether a value claims to be sealed, by any key."""
    return value.startswith(_MAGIC)


def key_id(key: bytes) -> bytes:
    """Which key it is, without telling it."""
    return hashlib.sha256(b"sidecar store key\0" + key).digest()[:_ID]


class SealedStore:
    """A store around another. What is under ``prefixes`` is sealed; without a seal it can be
    neither written nor read. What is under ``also`` is sealed where there is a seal, and read
    as it is where it was written without one. Everything else passes as it is.

    What a node with another key wrote under ``also``, or one with a key where this one has none,
    cannot be read: ``get`` raises, a list and a watch tell of it in the log and leave it out. One
    such node, or one record that outlived its key, keeps nobody from starting, nor what all the
    others write from this one."""

    def __init__(
        self,
        store: Store,
        seal: Seal | None,
        *,
        prefixes: Sequence[str] = SEALED,
        also: Sequence[str] = (),
        noted: str = "",
    ) -> None:
        """``noted`` is where in the store it stands which key seals, so that nodes whose keys
        differ are told when they start; empty: nowhere."""
        self._noted = noted
        self._store = store
        self._seal = seal
        self._always = tuple(prefixes)
        self._also = tuple(also)
        self._prefixes = self._always + (self._also if seal is not None else ())

    @property
    def sealing(self) -> bool:
        """Whether there is a key."""
        return self._seal is not None

    def _is_sealed(self, key: str) -> bool:
        return key.startswith(self._prefixes)

    def _sealer(self, key: str) -> Seal:
        if self._seal is None:
            raise StoreError(f"{key}: secrets are kept in the store only with store_key set")
        return self._seal

    def _opened(self, record: Record) -> Record:
        key, value = record.key, record.value
        if not key.startswith(self._always):
            if not key.startswith(self._also) or not is_sealed(value):
                return record
            if self._seal is None:
                raise StoreError(
                    f"{key}: another sidecar sealed it, and there is no store_key here; set the "
                    "one that the other has"
                )
        return replace(record, value=self._sealer(key).open(key, value))

    def _shown(self, record: Record) -> Record | None:
        """``None``, after telling why, for what cannot be opened and is no secret."""
        try:
            return self._opened(record)
        except StoreError as error:
            if record.key.startswith(self._always):
                raise
            log.error("%s", error)
            return None

    async def open(self) -> None:
        """See the port."""
        await self._store.open()
        if self._noted:
            # What is told here helps a person; nobody starts or fails by it.
            with suppress(StoreError):
                await self._compare()

    async def _compare(self) -> None:
        """Tell of a key other than that of whoever started last, and leave a note of ours.

        The note is replaced, so that a key that was changed on purpose is told of once.
        """
        there = await self._store.get(self._noted)
        seal = self._seal
        if seal is None:
            if there is not None:
                log.warning(
                    "store_key: the sidecar that started last on this store seals with a key, and "
                    "this one has none: it cannot read what others sealed"
                )
            return
        if there is not None:
            if seal.current(there.value):
                return
            try:
                seal.open(self._noted, there.value)
            except StoreError:
                log.warning(
                    "store_key: the sidecar that started last on this store seals with a key that "
                    "is not here; neither reads what the other sealed. Give every node the same "
                    "keys, a former one after the current one"
                )
        version = ABSENT if there is None else there.version
        await self._store.put(self._noted, seal.seal(self._noted, b""), expected=version)

    async def get(self, key: str) -> Record | None:
        """See the port. Raises StoreError for what cannot be opened."""
        record = await self._store.get(key)
        return None if record is None else self._opened(record)

    async def put(
        self, key: str, value: bytes, *, expected: int = ANY, expires: float | None = None
    ) -> Record:
        """See the port."""
        if not self._is_sealed(key):
            return await self._store.put(key, value, expected=expected, expires=expires)
        check_key(key)
        copy = bytes(value)
        sealed = self._sealer(key).seal(key, copy)
        record = await self._store.put(key, sealed, expected=expected, expires=expires)
        return replace(record, value=copy)

    async def delete(self, key: str, *, expected: int = ANY) -> bool:
        """See the port. What cannot be opened can still be deleted."""
        return await self._store.delete(key, expected=expected)

    async def list(self, prefix: str) -> list[Record]:
        """See the port. Raises StoreError when a secret cannot be opened: left out, it would look
        like one that was never there."""
        records = map(self._shown, await self._store.list(prefix))
        return [record for record in records if record is not None]

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        """See the port."""
        watch = self._store.watch(prefix)
        sealed = self._always + self._also
        around = any(p.startswith(prefix) or prefix.startswith(p) for p in sealed)
        return _Opened(watch, self) if around else watch

    async def close(self) -> None:
        """See the port."""
        await self._store.close()


class _Opened:
    """A watch whose values are opened. Raises StoreError at a secret that cannot be."""

    def __init__(self, watch: AsyncIterator[Change], store: SealedStore) -> None:
        self._watch = watch
        self._store = store

    def __aiter__(self) -> _Opened:
        return self

    async def __anext__(self) -> Change:
        while True:
            change = await anext(self._watch)
            if change.record is None:
                return change
            record = self._store._shown(change.record)
            if record is not None:
                return Change(change.key, record)

    async def aclose(self) -> None:
        """Stop, as the watch inside does."""
        close = getattr(self._watch, "aclose", None)
        if close is not None:
            await close()
