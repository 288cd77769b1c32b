"""A tool as it is listed, and what the operator's word does to it."""

from __future__ import annotations

import json

import pytest

from sidecar.catalog import Catalog
from sidecar.config import AnnotationOverride
from sidecar.model import Definition, Hints, Tool
from sidecar.wire.json import digest
from tests.gateway.scripted import config, offers, tool

# Everything a definition may hold, oddly spaced, with numbers that parsers like to spoil.
RICH = (
    b'{ "name" : "rich.tool","title":"Rich","icons":[{"src":"data:x","sizes":["48x48"]}],'
    b'"_meta":{"vendor/x":null,"big":123456789012345678901234567890},'
    b'"annotations":{"readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,'
    b'"openWorldHint":false,"title":"Say","vendorHint":1.10},\n'
    b'"inputSchema":{"type":"object","$defs":{"P":{"type":"string"}},'
    b'"properties":{"p":{"$ref":"#/$defs/P"}},"additionalProperties":false},'
    b'"outputSchema":{"type":"object"},"description":"d\\u00e9j\\u00e0 \\/ vu",'
    b'"unknownKey":[null,-0.0]}'
)


def built(definition: Definition, **rest: object) -> Tool:
    catalog = Catalog()
    catalog.place([config("s", **rest)])
    catalog.update("s", offers([definition]))
    (made,) = catalog.tools()
    return made


def test_c3_a_listing_differs_from_the_servers_in_its_name_alone() -> None:
    made = built(Definition("rich.tool", RICH))
    assert made.own_json == RICH
    assert made.json == RICH.replace(b'"rich.tool"', json.dumps(made.name).encode(), 1)


def test_the_digest_is_of_what_the_server_sent_in_canonical_form() -> None:
    made = built(
        Definition("rich.tool", RICH), annotations=(("*", AnnotationOverride(read_only=False)),)
    )
    assert made.digest == digest(json.loads(RICH))
    keys_turned = json.dumps(dict(reversed(json.loads(RICH).items()))).encode()
    assert built(Definition("rich.tool", keys_turned)).digest == made.digest
    other = RICH.replace(b"vu", b"vue")
    assert built(Definition("rich.tool", other)).digest != made.digest


def test_an_override_changes_the_overridden_hints_and_nothing_else() -> None:
    word = AnnotationOverride(read_only=False, open_world=True, title="Ours")
    made = built(Definition("rich.tool", RICH), annotations=(("rich.*", word),))
    right = json.loads(RICH)
    right["annotations"] |= {"readOnlyHint": False, "openWorldHint": True, "title": "Ours"}
    right["title"] = "Ours"
    assert json.loads(made.own_json) == right
    assert b'"vendorHint":1.10' in made.own_json
    assert json.loads(made.json) == {**right, "name": made.name}
    # What the server said of itself is still known as such.
    assert made.annotations["read_only"] is True
    assert made.annotations["title"] == "Say"


def test_an_override_of_a_tool_without_annotations_adds_them() -> None:
    word = AnnotationOverride(read_only=True)
    made = built(tool("x"), annotations=(("x", word),))
    assert json.loads(made.own_json)["annotations"] == {"readOnlyHint": True}


def test_the_first_override_that_matches_wins() -> None:
    words = (
        ("list_*", AnnotationOverride(read_only=True)),
        ("*", AnnotationOverride(idempotent=True)),
    )
    assert built(tool("list_x"), annotations=words).hints == Hints(read_only=True)
    assert built(tool("drop_x"), annotations=words).hints == Hints(idempotent=True)


CLAIMS = {
    "readOnlyHint": True,
    "destructiveHint": False,
    "idempotentHint": True,
    "openWorldHint": False,
}


@pytest.mark.parametrize(
    ("claims", "hints", "word", "right"),
    [
        (None, "trust", {}, Hints(False, True, False, True)),
        (CLAIMS, "trust", {}, Hints(True, False, True, False)),
        (CLAIMS, "restrict", {}, Hints(False, True, False, True)),
        (CLAIMS, "restrict", {"read_only": True}, Hints(True, True, False, True)),
        (CLAIMS, "trust", {"read_only": False}, Hints(False, False, True, False)),
        ({"readOnlyHint": "yes", "openWorldHint": 0}, "trust", {}, Hints(False, True, False, True)),
        ({"destructiveHint": True}, "restrict", {}, Hints(False, True, False, True)),
        ({"readOnlyHint": None}, "trust", {}, Hints()),
        ([], "trust", {}, Hints()),
        ("text", "trust", {}, Hints()),
    ],
)
def test_hints(claims: object, hints: str, word: dict[str, bool], right: Hints) -> None:
    definition = tool("x") if claims is None else tool("x", annotations=claims)
    made = built(definition, hints=hints, annotations=(("x", AnnotationOverride(**word)),))
    assert made.hints == right


def test_claims_are_told_under_our_names_and_unset_where_not_made() -> None:
    made = built(tool("x", annotations={"readOnlyHint": False, "title": "T", "idempotentHint": 1}))
    assert dict(made.annotations) == {"read_only": False, "title": "T"}


@pytest.mark.parametrize(
    ("gated", "claims", "right"),
    [
        (None, {}, (True, False)),
        (None, {"readOnlyHint": True}, (False, False)),
        (True, {"readOnlyHint": True}, (True, True)),
        (False, {}, (False, True)),
        (("x",), {"readOnlyHint": True}, (True, True)),
        (("y*",), {}, (False, False)),
    ],
)
def test_gated(gated: object, claims: dict[str, bool], right: tuple[bool, bool]) -> None:
    made = built(tool("x", annotations=claims), gated=gated)
    assert (made.gated, made.gate_set) == right


def test_a_definition_that_cannot_be_read_costs_itself_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deep = Definition("deep", b'{"name":"deep","x":' + b"[" * 400 + b"]" * 400 + b"}")
    catalog = Catalog()
    catalog.place([config("s")])
    catalog.update("s", offers([Definition("bad", b"[]"), deep, "good"]))
    assert [t.name for t in catalog.tools()] == ["s__good"]
    texts = [r.getMessage() for r in caplog.records]
    assert len(texts) == 2
    assert all("server s" in text and "cannot be read" in text for text in texts)


def test_an_update_builds_only_what_changed() -> None:
    catalog = Catalog()
    catalog.place([config("a"), config("b")])
    catalog.update("a", offers(["x", "y"]))
    catalog.update("b", offers(["x"]))
    before = {t.name: t for t in catalog.tools()}
    diff = catalog.update("a", offers(["x", tool("y", description="new"), "z"]))
    after = {t.name: t for t in catalog.tools()}
    assert (diff.added, diff.removed, diff.changed) == (("a__z",), (), ("a__y",))
    assert after["a__x"] is before["a__x"]
    assert after["b__x"] is before["b__x"]
    assert after["a__y"].digest != before["a__y"].digest
    assert not catalog.update("a", offers(["x", tool("y", description="new"), "z"]))
    assert catalog.update("a", offers([])).removed == ("a__x", "a__y", "a__z")
