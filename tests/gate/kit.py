"""A gateway with the real gate, in front of scripted servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sidecar.config import Config, LabelsConfig, Retry, ServerConfig
from sidecar.events import Bus, Decided
from sidecar.gate import Gatehouse
from sidecar.gateway import Gateway
from sidecar.model import Caller, Entries, Fields, JsonObject
from sidecar.policy import load
from sidecar.policy.guard import Guarded
from sidecar.ports.policy import EngineOptions
from sidecar.ports.store import Change, Record, Store, StoreError
from sidecar.store.memory import MemoryStore
from sidecar.wire.json import encode
from tests.gateway.scripted import Scripted, config

CONFIG = Config(list_wait=0.2, retry=Retry(attempts=3, base=0.001))


class Policies:
    """A holder whose policy a test swaps."""

    def __init__(self, policy: Guarded) -> None:
        self.current = policy


def policy(
    folder: Path, *texts: str, shipped: Sequence[str] = (), default: str = "allow"
) -> Guarded:
    """These files; each text is what stands below ``kind: Policy``."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.yaml"):
        old.unlink()
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"p{number}.yaml"
        path.write_text(f"apiVersion: sidecar/v1\nkind: Policy\nname: p{number}\n{text}")
        paths.append(path)
    return load(paths, shipped=shipped, options=EngineOptions(default=default))  # type: ignore[arg-type]


def rules(*rows: str) -> str:
    """``rules:`` of one-line mappings."""
    return "rules:\n" + "".join(f"  - {{{row}}}\n" for row in rows)


class Frail(MemoryStore):
    """A store that a test loses."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = False
        self.hangs = False
        self.puts: list[str] = []

    async def _stand(self) -> None:
        if self.hangs:
            await asyncio.sleep(3600)
        if self.lost:
            raise StoreError("the store is lost")

    async def get(self, key: str) -> Record | None:
        await self._stand()
        return await super().get(key)

    async def put(self, key: str, value: bytes, **rest: Any) -> Record:
        await self._stand()
        self.puts.append(key)
        return await super().put(key, value, **rest)

    async def list(self, prefix: str) -> list[Record]:  # type: ignore[valid-type]
        await self._stand()
        return await super().list(prefix)


class World:
    """``serve`` servers, ``use`` policies, then ``call``."""

    def __init__(self, holder: Policies, house: Gatehouse, gateway: Gateway, bus: Bus) -> None:
        self.holder = holder
        self.house = house
        self.gateway = gateway
        self.bus = bus
        self.decided: list[Decided] = []
        bus.listen(Decided, self.decided.append)

    @classmethod
    async def start(
        cls,
        policy: Guarded,
        *,
        store: Store | None = None,
        labels: LabelsConfig | None = None,
        inputs: Path | None = None,
        tracer: Any = None,
        **rest: Any,
    ) -> World:
        bus = Bus()
        if store is None:
            store = Frail()
            await store.open()
        held = Config(
            list_wait=0.2,
            retry=CONFIG.retry,
            labels=labels or LabelsConfig(),
            **rest,
        )
        holder = Policies(policy)

        def servers(name: str) -> ServerConfig | None:
            return gateway.config_of(name)

        house = Gatehouse(holder, store, bus, held, servers=servers, inputs=inputs)
        gateway = Gateway(held, bus, gate=house.gate, tracer=tracer)
        await house.start(gateway.tools)
        return cls(holder, house, gateway, bus)

    async def close(self) -> None:
        await self.gateway.close()
        await self.house.close()

    def serve(self, name: str, entries: Entries, **rest: object) -> Scripted:
        upstream = Scripted(name, entries, bus=self.bus)
        self.gateway.attach(upstream, config(name, **rest))
        return upstream

    async def call(
        self, name: str, caller: Caller, arguments: Mapping[str, object] | None = None
    ) -> JsonObject:
        """The result of a tool's call, as a client reads it."""
        params: JsonObject = {"name": name, "arguments": dict(arguments or {})}
        return plain(await self.gateway.request("tools/call", params, caller))

    async def names(self, caller: Caller) -> list[str]:
        fields = plain(await self.gateway.request("tools/list", {}, caller))
        return [tool["name"] for tool in fields["tools"]]  # type: ignore[attr-defined, index]


def plain(fields: Fields) -> JsonObject:
    """As a client reads it."""
    value: JsonObject = json.loads(encode(fields))
    return value


def denial(result: JsonObject) -> Any:
    """``{rule, message}`` of a refused call, ``None`` where it was answered."""
    meta: Any = result.get("_meta", {})
    found = meta.get("sidecar/denied")
    assert (found is not None) <= (result.get("isError") is True)
    return found


def labels(result: JsonObject) -> Any:
    meta: Any = result.get("_meta", {})
    return meta.get("sidecar/labels")


__all__ = ["Change", "Frail", "Policies", "World", "denial", "labels", "plain", "policy", "rules"]
