"""What is said of trails that are hardly there, or are no files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.cli import main
from sidecar.telemetry.audit_file import ChainFile


def test_a_trail_without_a_record_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "audit.jsonl"
    file.touch()
    assert main(["audit", "verify", str(file)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("note: there is no record: ")
    assert out[1:] == ["0 records in 1 file; the chain holds"]
    assert main(["audit", "verify", str(file), "--head", f"7:{'a' * 64}"]) == 4
    assert "ends with record 0, before 7" in capsys.readouterr().out


def test_one_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "audit.jsonl"
    trail = ChainFile(file, 1 << 20)
    trail.append([b'{"kind":"stop"}'])
    trail.close()
    assert main(["audit", "verify", str(file)]) == 0
    told, head = capsys.readouterr().out.splitlines()
    assert told == "1 record in 1 file; the chain holds"
    assert head.startswith("head 1:")


def test_a_link_is_called_one(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a symbolic link, which is not followed") as raised:
        ChainFile(file, 1 << 20).append([b'{"kind":"stop"}'])
    assert raised.value.filename == str(file)
