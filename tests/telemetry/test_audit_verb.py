"""What ``sidecar audit verify`` says of trails that are hardly there."""

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
