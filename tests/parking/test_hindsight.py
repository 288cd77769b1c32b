"""What the admin API tells of a call in hindsight, and of ids that are none."""

from __future__ import annotations

from typing import Any

import aiohttp

from tests.kit.client import Legacy
from tests.kit.running import Sidecar, running
from tests.parking.test_admin_calls import config, opened


class People:
    """The admin API, by its paths."""

    def __init__(self, sidecar: Sidecar) -> None:
        connector = aiohttp.UnixConnector(sidecar.admin.removeprefix("unix:"))
        self._http = aiohttp.ClientSession(connector=connector)

    async def __aenter__(self) -> People:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async with self._http.get(f"http://localhost/v1/{path}") as got:
            return got.status, await got.json()

    async def answer(self, id: str, answer: str) -> int:
        async with self._http.post(f"http://localhost/v1/calls/{id}/{answer}") as got:
            return got.status


async def asked(client: Legacy, text: str) -> str:
    """The id of a call that waits now."""
    polled = await client.call("notes__add", text=text)
    return str(polled["_meta"]["sidecar/parked"]["id"])


async def test_a_call_is_compared_with_what_was_approved_before_it_ended(
    http: aiohttp.ClientSession,
) -> None:
    async with running(config("50ms")) as sidecar, People(sidecar) as people:
        client = await opened(http, sidecar)

        async def compared(id: str) -> object:
            found = (await people.get(f"calls/{id}"))[1].get("compared")
            return found and found["args"]["text"]

        first, second, third = [await asked(client, text) for text in ("1", "2", "3")]
        denied = await asked(client, "denied")
        assert await people.answer(first, "approve") == 200
        assert await people.answer(second, "approve") == 200
        assert await people.answer(denied, "deny") == 200
        assert await compared(third) == "2"
        assert await people.answer(third, "approve") == 200
        # What came later is nothing that whoever answered could have seen.
        assert [await compared(id) for id in (first, second, third, denied)] == [
            None,
            "1",
            "2",
            "2",
        ]
        assert await compared(await asked(client, "4")) == "3"


async def test_an_id_that_no_store_could_hold_is_not_there(http: aiohttp.ClientSession) -> None:
    async with running(config("50ms")) as sidecar, People(sidecar) as people:
        for id in ("%00", "a" * 2000, "%F0%9F%98%80", "a%2Fb", "%0A", "%ED%A0%80"):
            status, told = await people.get(f"calls/{id}")
            assert (status, told["reason"]) == (404, "not_found"), id
            for answer in ("approve", "deny"):
                assert await people.answer(id, answer) == 404, (id, answer)
