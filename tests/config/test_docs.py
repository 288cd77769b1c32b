"""Every YAML block of docs/config.md loads, or fails exactly as it says; every key is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sidecar.config import Config, ConfigErrors, load, notbuilt
from sidecar.config.record import Record
from sidecar.config.shapes import MapOf
from sidecar.config.table import ROOT

PAGE = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ENVIRON = {"HOME": "/home/somebody", "GITHUB_TOKEN": "t"}


def loaded(text: str, tmp_path: Path) -> Config:
    for i, secret in enumerate(sorted(set(re.findall(r"/secrets/([a-z]+)", text)))):
        value = "https://hooks.example/x" if secret == "hook" else f"token-of-some-length-{i}"
        (tmp_path / secret).write_text(f"{value}\n")
    file = tmp_path / "sidecar.yaml"
    file.write_text(text.replace("/secrets/", f"{tmp_path}/"))
    return load(file, environ=ENVIRON)


@pytest.mark.parametrize("text", BLOCKS, ids=range(len(BLOCKS)))
def test_blocks(text: str, tmp_path: Path) -> None:
    if not text.startswith("# error\n"):
        loaded(text, tmp_path)
        return
    expected = []
    for line in text.splitlines()[1:]:
        if not line.startswith("# "):
            break
        expected.append(line.removeprefix("# "))
    with pytest.raises(ConfigErrors) as caught:
        loaded(text, tmp_path)
    told = [f"{fault.path}: {fault.message}" for fault in caught.value.faults]
    assert sorted(told) == sorted(expected)


def test_there_are_blocks_of_both_kinds() -> None:
    errors = sum(text.startswith("# error\n") for text in BLOCKS)
    assert errors >= 5
    assert len(BLOCKS) - errors >= 8


def keys(record: Record[object], prefix: str = "") -> list[str]:
    found = []
    for each in record.fields:
        shape, path = each.shape, f"{prefix}{each.key}"
        if isinstance(shape, MapOf) and isinstance(shape._value, Record):
            found += keys(shape._value, f"{path}.*.")
        elif isinstance(shape, Record):
            found += keys(shape, f"{path}.")
        else:
            found.append(path)
    return found


def test_every_key_is_in_a_table_of_the_page() -> None:
    known = {key for key in keys(ROOT) if ".annotations.*." not in key}  # type: ignore[arg-type]
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    missing = [key for key in sorted(known) if f"| `{key}` |" not in tables]
    assert missing == []
    assert all(f"`{hint}`" in PAGE for hint in ("read_only", "open_world", "title"))


def test_every_default_of_a_limit_is_the_real_one(tmp_path: Path) -> None:
    """The block that writes all the defaults out changes nothing."""
    block = next(text for text in BLOCKS if "list_pages: 1000" in text)
    written, default = loaded(block, tmp_path), Config()
    assert (written.limits, written.retry) == (default.limits, default.retry)
    assert (written.list_wait, written.drain_grace) == (default.list_wait, default.drain_grace)


def test_everything_that_is_not_built_is_named() -> None:
    section = PAGE.split("## Not available in this version")[1].split("\n## ")[0]
    missing = [
        path for path in notbuilt.NOT_BUILT if ":" not in path and f"`{path}`" not in section
    ]
    assert missing == []
