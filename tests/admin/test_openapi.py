"""The admin API is what its document says: every route, every role, every answer.

A real sidecar serves it over TCP; schemathesis makes requests of the document, good and bad.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from sidecar.admin.api import Problem, problem
from tests.kit.running import Sidecar, started

TOKENS = {"admin": "operator", "alice": "approver", "victor": "viewer", "olga": "operator"}
RANK = {"viewer": 1, "approver": 2, "operator": 3}
METHODS = {"get", "put", "post", "delete", "patch"}


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    folder = tmp_path_factory.mktemp("admin")
    for name in TOKENS:
        (folder / name).write_text(f"token-of-{name}\n")
    approvers = {
        name: {"token_file": str(folder / name), "role": role}
        for name, role in TOKENS.items()
        if name != "admin"
    }
    admin = {
        "listen": "127.0.0.1:0",
        "token_file": str(folder / "admin"),
        "approvers": approvers,
    }
    config: dict[str, Any] = {"admin": admin, "servers": {"git": {"command": ["false"]}}}
    with started(config) as sidecar:
        yield sidecar


def ask(
    sidecar: Sidecar,
    method: str,
    path: str,
    *,
    token: str | None = None,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    """One request, for which nothing but an object is an answer."""
    connection = http.client.HTTPConnection(sidecar.admin.removeprefix("http://"), timeout=60)
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, body=body, headers=sent)
        response = connection.getresponse()
        kind = response.headers.get_content_type()
        if kind == "text/event-stream":
            return response.status, {}, response.headers
        raw = response.read()
        return response.status, json.loads(raw) if raw else {}, response.headers
    finally:
        connection.close()


@pytest.fixture(scope="module")
def document(sidecar: Sidecar) -> dict[str, Any]:
    status, found, _ = ask(sidecar, "GET", "/openapi.json", token="token-of-victor")
    assert status == 200
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


def filled(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "none-of-this-name", path)


def test_the_document_says_all_of_itself(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    found = {(method, path) for method, path, _ in operations(document)}
    assert {
        ("GET", "/v1/servers"),
        ("PUT", "/v1/servers/{name}"),
        ("DELETE", "/v1/servers/{name}"),
        ("POST", "/v1/reconcile"),
        ("GET", "/v1/tools"),
        ("GET", "/v1/sessions"),
        ("GET", "/v1/policy"),
        ("POST", "/v1/policy/eval"),
        ("POST", "/v1/egress/check"),
        ("GET", "/v1/works"),
        ("POST", "/v1/sweep"),
        ("GET", "/openapi.json"),
    } <= found
    identifiers = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(identifiers)) == len(identifiers)
    text = json.dumps(document)
    for reference in set(re.findall(r'"#/components/schemas/([^"]+)"', text)):
        assert reference in document["components"]["schemas"], reference
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["x-role"] in RANK, where
        assert {"401", "403"} <= operation["responses"].keys(), where
        names = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
        assert names == set(re.findall(r"\{([^}]+)\}", path)), where
        for status, answer in operation["responses"].items():
            assert "$ref" in answer or answer["description"], f"{where} {status}"


def test_every_route_is_in_the_document() -> None:
    """What the app hands to the listener is what the document is made of, page aside."""
    from sidecar.admin.listener import AdminListener
    from sidecar.admin.roles import Tokens
    from sidecar.app import App
    from sidecar.config import Config

    app = App(Config())
    routes = app._admin_routes()
    listener = AdminListener(routes, tokens=Tokens(), own=frozenset())
    from sidecar.admin.openapi import document

    described = {(method, path) for method, path, _ in operations(document(listener._routes))}
    assert described == {(each.method, each.path) for each in listener._routes}
    assert described >= {(each.method, each.path) for each in routes}


def test_every_route_asks_for_its_role(sidecar: Sidecar, document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        body = b"[]" if "requestBody" in operation else None
        headers = {"Content-Type": "application/json"} if body else {}
        for token in (None, "wrong", "token-of-", "token-of-admin "):
            if token == "token-of-admin ":
                continue
            status, answer, sent = ask(
                sidecar, method, filled(path), token=token, body=body, headers=headers
            )
            assert (status, answer["reason"]) == (401, "token"), where
            assert sent["WWW-Authenticate"].startswith("Bearer"), where
        for name, role in TOKENS.items():
            if RANK[role] < RANK[operation["x-role"]]:
                status, answer, _ = ask(
                    sidecar,
                    method,
                    filled(path),
                    token=f"token-of-{name}",
                    body=body,
                    headers=headers,
                )
                assert (status, answer["reason"]) == (403, "role"), (where, name)
                assert operation["x-role"] in answer["detail"]
        # Whoever reaches that far gets past it; an array is no object, so nothing is changed.
        least = next(name for name, role in TOKENS.items() if role == operation["x-role"])
        if method == "GET" or body is not None:
            status, answer, _ = ask(
                sidecar,
                method,
                filled(path),
                token=f"token-of-{least}",
                body=body,
                headers=headers,
            )
            assert answer.get("reason") not in ("role", "token"), where
            assert status < 500 or answer.get("reason") == "store_unavailable", where


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_whatever_is_not_there_is_a_problem(sidecar: Sidecar, method: str) -> None:
    for path in ("/nothing", "/v1/", "/v1/servers/a/b", "/v1/tools", "/%2e%2e/etc", "/v1//tools"):
        status, answer, headers = ask(sidecar, method, path, token="token-of-admin")
        if (method, path) == ("GET", "/v1/tools"):
            continue
        assert status in (404, 405), (method, path)
        assert headers.get_content_type() == "application/problem+json"
        assert answer["status"] == status
        assert (status == 405) == ("Allow" in headers)


@pytest.mark.parametrize(
    ("body", "kind", "status", "reason"),
    [
        (b'{"url":"http://a"}', "text/plain", 415, "content_type"),
        (b'{"url":"http://a"}', None, 415, "content_type"),
        (b"", "application/json", 400, "bad_json"),
        (b"{", "application/json", 400, "bad_json"),
        (b"[]", "application/json", 400, "bad_json"),
        (b"null", "application/json", 400, "bad_json"),
        (b'{"url":"http://a","url":"http://b"}', "application/json", 400, "bad_json"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "application/json", 400, "bad_json"),
        (b'{"x":"' + b"x" * (1 << 20) + b'"}', "application/json", 413, "too_large"),
        (b"\xff\xfe", "application/json", 400, "bad_json"),
        (b'{"url":1}', "application/json", 422, "options"),
        (b'{"url":"http://secret-of-mine.example","x":1}', "application/json", 422, "options"),
        (b'{"command":["sh"]}', "application/json", 422, "commands"),
        (b'{"url":"http://127.0.0.1/"}', "application/json", 422, "egress/loopback"),
    ],
)
def test_bad_bodies(
    sidecar: Sidecar, body: bytes, kind: str | None, status: int, reason: str
) -> None:
    headers = {"Content-Type": kind} if kind else {}
    got, answer, sent = ask(
        sidecar, "PUT", "/v1/servers/a", token="token-of-olga", body=body, headers=headers
    )
    assert (got, answer["reason"]) == (status, reason)
    assert sent.get_content_type() == "application/problem+json"
    assert "secret-of-mine" not in json.dumps(answer)


def test_a_body_without_an_end_is_cut_off(sidecar: Sidecar) -> None:
    connection = http.client.HTTPConnection(sidecar.admin.removeprefix("http://"), timeout=60)
    connection.putrequest("PUT", "/v1/servers/a")
    connection.putheader("Authorization", "Bearer token-of-olga")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    # Nobody waits for the end of it.
    for _ in range(32):
        connection.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["reason"] == "too_large"
    connection.close()


def test_names_of_servers(sidecar: Sidecar) -> None:
    body, headers = b'{"url":"http://93.184.216.34/"}', {"Content-Type": "application/json"}
    for name, status, reason in (
        ("git", 409, "configured"),
        ("sidecar", 409, "reserved"),
        ("a__b", 422, "name"),
        ("x" * 33, 422, "name"),
        ("%C3%B6", 422, "name"),
        ("%00", 422, "name"),
    ):
        got, answer, _ = ask(
            sidecar,
            "PUT",
            f"/v1/servers/{name}",
            token="token-of-olga",
            body=body,
            headers=headers,
        )
        assert (got, answer["reason"]) == (status, reason), name
    got, answer, _ = ask(sidecar, "DELETE", "/v1/servers/nobody", token="token-of-olga")
    assert (got, answer["reason"]) == (404, "not_found")
    got, answer, _ = ask(sidecar, "DELETE", "/v1/servers/git", token="token-of-olga")
    assert (got, answer["reason"]) == (409, "configured")


# -------------------------------------------------------------------------------- schemathesis


# A schema cannot say all that is checked, so that what it lets through may still be refused.
EXCLUDED = ("positive_data_acceptance",)
# A key of a query that holds an empty list is not sent at all: what is sent is fine then.
EXCLUDED_OF_QUERIES = ("negative_data_rejection",)
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.mark.timeout(300)
def test_it_answers_as_the_document_says(sidecar: Sidecar, document: dict[str, Any]) -> None:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=sidecar.admin)
    excluded = [CHECKS.get_one(name) for name in EXCLUDED]
    asked = 0
    for method, path, described in operations(document):
        if any("text/event-stream" in str(each) for each in described["responses"].values()):
            continue
        for mode in MODES:
            operation = schema[path][method]
            queried = any(each["in"] == "query" for each in described.get("parameters", []))
            left_out = excluded + [CHECKS.get_one(n) for n in EXCLUDED_OF_QUERIES if queried]
            if mode is GenerationMode.NEGATIVE and not (
                described.get("requestBody") or described.get("parameters")
            ):
                continue

            @settings(
                max_examples=12,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: schemathesis.Case) -> None:
                nonlocal asked
                asked += 1
                case.call_and_validate(
                    headers={"Authorization": "Bearer token-of-admin"},
                    excluded_checks=left_out,  # noqa: B023  it is run right here
                    timeout=60,
                )

            check()
    assert asked > 100


def test_every_refusal_of_the_document_has_a_title(document: dict[str, Any]) -> None:
    told = {int(each) for _, _, found in operations(document) for each in found["responses"]}
    assert {401, 421, 422} <= told
    for status in sorted(each for each in told if each >= 400):
        body = json.loads(bytes(cast("bytes", problem(Problem(status, "why", "what")).body)))
        assert (body["title"] == "Error", body["status"]) == (False, status)


def test_a_host_of_others_is_misdirected(sidecar: Sidecar) -> None:
    status, told, _ = ask(sidecar, "GET", "/v1/servers", headers={"Host": "evil.example"})
    assert (status, told["title"], told["reason"]) == (421, "Misdirected Request", "host")
