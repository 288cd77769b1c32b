"""The JSON Schema and the loader are of one table; here, that they agree on real files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jsonschema
import pytest
import yaml

from sidecar.config import AnnotationOverride, ConfigErrors, Limits, notbuilt
from sidecar.config.record import Record
from sidecar.config.schema import schema
from sidecar.config.table import ROOT, Bounds
from tests.config.conftest import Load
from tests.config.test_load import ALL, write

VALIDATOR = jsonschema.Draft202012Validator(schema())


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_it_takes_what_loads(good: Load, tmp_path: Path) -> None:
    write(tmp_path, operator="o", triage="t", nobody="n", **{"home/gh": "g"})
    for text in (ALL, "", "servers:\n", "audit: off\nchildren: {user: null}\nlisten: off"):
        good(text, env={"GH": "x"})
        assert list(VALIDATOR.iter_errors(yaml.safe_load(text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "nam: x",
        "name: 7",
        "listen: 8808",
        "listen: :8808",
        "servers: {a: {}}",
        "servers: {a: {command: [a], url: http://x}}",
        "servers: {a: {url: http://x, only: [a], except: [b]}}",
        "servers: {a: {url: http://x, gated: maybe}}",
        "servers: {a: {url: http://x, timeout: 30}}",
        "servers: {a: {url: http://x, era: old}}",
        "servers: {a: {url: http://x, headers: {h: {from_env: A, from_file: b}}}}",
        "servers: {a: {command: []}}",
        "servers: {a__b: {command: [a]}}",
        "agents: {a: {}}",
        "limits: {depth: 0}",
        "limits: {body: 4TB}",
        "separator: .",
        "store: nonsense",
        "labels: {ttl: 24}",
        "labels: {scope: everybody}",
        "servers: {a: {url: http://x, egress: proxy}}",
    ],
)
def test_it_refuses_what_does_not_load(good: Load, text: str) -> None:
    with pytest.raises(ConfigErrors):
        good(text)
    assert list(VALIDATOR.iter_errors(yaml.safe_load(text))) != []


def records(shape: object) -> list[Record[object]]:
    """All records of the table, from the root down."""
    found = [shape] if isinstance(shape, Record) else []
    inner = [getattr(shape, "_value", None), getattr(shape, "_item", None)]
    if isinstance(shape, Record):
        inner = [each.shape for each in shape.fields]
    return found + [record for each in inner if each for record in records(each)]


def test_every_key_says_what_it_is() -> None:
    assert len(records(ROOT)) == 26
    silent = [each.key for record in records(ROOT) for each in record.fields if not each.help]
    assert silent == []


def test_the_table_knows_every_field_of_the_types() -> None:
    assert {each.key for each in ROOT.fields if isinstance(each.shape, Record)} >= {"limits"}
    keys = {value.key for value in vars(Bounds).values() if hasattr(value, "key")}
    assert keys == {field.name for field in dataclasses.fields(Limits) if field.compare}
    hints = next(record for record in records(ROOT) if record.what == "a mapping of hints")
    names = {field.name for field in dataclasses.fields(AnnotationOverride)}
    assert {each.key for each in hints.fields} == names


def test_a_built_feature_has_no_row_left() -> None:
    """A key is a field or a row of what is not built, never both."""
    for record in records(ROOT):
        assert {each.key for each in record.fields} & record.not_built.keys() == set()


NOOPS = [
    (path, value)
    for path, row in notbuilt.NOT_BUILT.items()
    for value in row.noop
    if "*" not in path and ":" not in path
]


def nested(path: str, value: object) -> str:
    for key in reversed(path.split(".")):
        value = {key: value}
    return yaml.safe_dump(value)


@pytest.mark.parametrize(("path", "value"), NOOPS, ids=str)
def test_what_asks_for_nothing_is_taken(good: Load, path: str, value: object) -> None:
    text = nested(path, value)
    assert good(text).servers == {}
    assert list(VALIDATOR.iter_errors(yaml.safe_load(text))) == []


@pytest.mark.parametrize("path", [p for p in notbuilt.NOT_BUILT if "*" not in p and ":" not in p])
def test_what_is_not_built_says_so(good: Load, path: str) -> None:
    text = nested(path, {"something": 1})
    with pytest.raises(ConfigErrors) as caught:
        good(text)
    told = [fault for fault in caught.value.faults if fault.path == path]
    assert len(told) == 1
    assert told[0].message.startswith("not available in this version (")
    assert told[0].message.endswith("; remove it")
    assert list(VALIDATOR.iter_errors(yaml.safe_load(text))) != []
