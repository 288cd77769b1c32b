"""A valid file, changed at random: it loads, or tells faults; nothing else ever comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.config import Config, ConfigErrors, load
from tests.config.test_load import ALL, write
from tests.kit.examples import examples

MCP = json.dumps(
    {
        "mcpServers": {
            "one": {"command": "a", "args": ["b", "${HOME}"], "env": {"A": "b"}, "cwd": "c"},
            "t w o": {"type": "http", "url": "http://x/mcp", "headers": {"A": "${HOME:-b}"}},
        }
    },
    indent=1,
)
PIECES = [
    *"{}[]:,-#&*!|>'\"%@`~?\\\n\t \0",
    "<<: *a",
    "&a ",
    "*a",
    "---\n",
    "\ufeff",
    "\u2028",
    "🙂",
    "null",
    "yes",
    "1e999",
    "-1",
    "9" * 30,
    "unix:",
    "${",
    "!!binary ",
    "from_env: X",
    "servers:",
    "only: []",
]
SETTINGS = settings(
    deadline=None,
    max_examples=examples(120),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """Cut, repeat, move or put in a few pieces."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        piece = draw(st.sampled_from([*PIECES, text[start:end]]) | st.text(max_size=4))
        kind = draw(st.sampled_from(["cut", "insert", "replace"]))
        put = "" if kind == "cut" else piece
        text = text[:start] + put + text[start if kind == "insert" else end :]
    return text


@pytest.fixture
def attempt(tmp_path: Path, environ: dict[str, str]) -> Callable[[bytes, bytes], None]:
    write(tmp_path, operator="o", triage="t", nobody="n", **{"home/gh": "g"})
    yaml, mcp = tmp_path / "sidecar.yaml", tmp_path / "m.json"

    def run(text: bytes, servers: bytes) -> None:
        yaml.write_bytes(text)
        mcp.write_bytes(servers)
        try:
            config = load(yaml, mcp_configs=[mcp], environ=environ | {"GH": "x"})
        except ConfigErrors as errors:
            assert errors.faults
            for fault in errors.faults:
                assert fault.message
                assert str(fault).isprintable(), str(fault)
        else:
            assert isinstance(config, Config)

    return run


@SETTINGS
@given(text=mutated(ALL))
def test_mutations_of_the_file(attempt: Callable[[bytes, bytes], None], text: str) -> None:
    attempt(text.encode("utf-8", "surrogatepass"), b'{"mcpServers": {}}')


@SETTINGS
@given(text=mutated(MCP))
def test_mutations_of_a_list(attempt: Callable[[bytes, bytes], None], text: str) -> None:
    attempt(b"", text.encode("utf-8", "surrogatepass"))


@SETTINGS
@given(at=st.integers(0, len(ALL) - 1), byte=st.binary(min_size=1, max_size=2))
def test_bytes(attempt: Callable[[bytes, bytes], None], at: int, byte: bytes) -> None:
    data = ALL.encode()
    attempt(data[:at] + byte + data[at + 1 :], b'{"mcpServers": {}}')
