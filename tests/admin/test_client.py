"""AdminClient: what it takes for an address and a token, and what its errors tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from sidecar.admin import AdminClient, AdminError, NotFound, Refused
from sidecar.cli import main

TOKEN = "s3cret-of-the-operator"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server that asks for the token, and has servers, as an admin listener does."""

    async def servers(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization") == f"Bearer {TOKEN}"
        return web.json_response({"servers": []}) if given else web.json_response({}, status=401)

    async def other(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": 1}}, status=404)

    app = web.Application()
    app.router.add_get("/v1/servers", servers)
    app.router.add_route("*", "/{rest:.*}", other)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.parametrize("form", ["http://127.0.0.1:{}", "http://127.0.0.1:{}/", "127.0.0.1:{}"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
async def test_an_address_as_in_the_configuration_and_a_token_as_in_its_file(
    port: int, form: str, end: str
) -> None:
    admin = AdminClient(form.format(port), token=TOKEN + end)
    assert await asyncio.to_thread(admin.servers) == []


@pytest.mark.parametrize(
    "address",
    [
        "https://127.0.0.1:1",
        "ftp://127.0.0.1:1",
        "http://user:s3cret@127.0.0.1:1",
        "http://127.0.0.1:1/v1",
        "http://127.0.0.1:none",
        "http://",
        "unix:",
        "/run/sidecar/admin.sock",
        "",
    ],
)
def test_what_is_no_address_is_refused_before_a_token_goes_anywhere(address: str) -> None:
    with pytest.raises(ValueError, match=r"unix:/path or http://host:port") as caught:
        AdminClient(address, token=TOKEN)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("inside", ["\n", "\r\nX-Other: 1", " ", "\x00", "\u017f"])
def test_a_token_that_is_none_is_not_quoted(inside: str) -> None:
    with pytest.raises(ValueError, match="a token is one line") as caught:
        AdminClient("http://127.0.0.1:1", token=f"s3cret{inside}more")
    assert "s3cret" not in str(caught.value)


def test_the_command_line_says_which_setting_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("s3cret with spaces\n")
    file = tmp_path / "sidecar.yaml"
    file.write_text("admin: {listen: '127.0.0.1:1', token_file: token}\nstore: memory\n")
    assert main(["servers", "list", "--config", str(file)]) == 1
    told = capsys.readouterr().err
    assert "admin.token_file: a token is one line" in told
    assert "s3cret" not in told


async def test_another_listener_is_told_as_one(port: int) -> None:
    admin = AdminClient(f"http://127.0.0.1:{port}", token=TOKEN)
    with pytest.raises(AdminError, match="HTTP 404: is it the admin listener") as caught:
        await asyncio.to_thread(admin.remove, "search")
    assert not isinstance(caught.value, NotFound), "nobody said that there is none"


def test_no_name_is_not_another_path() -> None:
    admin = AdminClient("http://127.0.0.1:1")
    for ask in (lambda: admin.add("", url="http://a"), lambda: admin.remove("")):
        with pytest.raises(Refused) as caught:
            ask()
        assert caught.value.reason == "name"
