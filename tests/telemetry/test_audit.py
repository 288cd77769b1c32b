"""The audit trail of a sidecar: nothing is answered before its record is written."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.cli import main
from sidecar.events import Bus, Decided, ParkedAnswered, ParkedChanged
from sidecar.model import Decision, PolicyError, TraceContext
from sidecar.policy import SHIPPED
from sidecar.telemetry import audit
from sidecar.telemetry.audit import Audit
from sidecar.telemetry.audit_chain import Head, rotated, verify
from sidecar.telemetry.audit_file import ChainFile
from tests.kit.client import Legacy, Modern, eventually
from tests.kit.running import Sidecar, running, started

NOTES: dict[str, Any] = {"command": [sys.executable, "-m", "sidecar.demo.notes"], "trusted": True}
TRACE = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


class Memory:
    """A trail that keeps its batches. ``fail`` is raised by the next appends."""

    def __init__(self) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self.head = Head()
        self.fail: OSError | None = None
        self.free = threading.Event()
        self.free.set()
        self.closed = False

    def append(self, records: Sequence[bytes]) -> Head:
        self.free.wait(30)
        if self.fail is not None:
            raise self.fail
        self.batches.append([json.loads(each) for each in records])
        return self.head

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    @property
    def records(self) -> list[dict[str, Any]]:
        return [each for batch in self.batches for each in batch]

    @property
    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.records]


def decided(call: str = "c1", **other: Any) -> Decided:
    said: dict[str, Any] = {
        "call": call,
        "phase": "call",
        "target": "notes__add",
        "principal": "triage",
        "decision": Decision("allow", "default"),
    }
    return Decided(**{**said, **other})


@pytest.fixture
async def trail() -> Memory:
    return Memory()


@pytest.fixture
async def bus() -> Bus:
    return Bus()


async def opened(trail: Memory, bus: Bus, patience: float = 20.0) -> Audit:
    made = Audit(trail, bus, {"run": "r1"}, clock=lambda: 1_800_000_000.25, patience=patience)
    await made.start()
    return made


# ---------------------------------------------------------------------------- what is in it


async def test_a_decision(trail: Memory, bus: Bus) -> None:
    kept = await opened(trail, bus)
    decision = Decision(
        "deny",
        "house/no-writes",
        ("house/no-writes", "house/quiet"),
        "house",
        "rev1",
        "denied: not today",
        mode="audit",
        would="ask",
        would_rule="gating/writes",
        error=PolicyError("type", 3, 4, "no such key"),
        labels=("outside",),
    )
    bus.publish(
        decided(
            trace=TRACE,
            decision=decision,
            server="notes",
            kind="mcp",
            session="s1",
            definition="d" * 64,
            arguments=lambda: "a" * 64,
        )
    )
    assert await kept.written()
    await kept.close()
    start, record, stop = trail.records
    assert record == {
        "kind": "decision",
        "at": "2027-01-15T08:00:00.250000Z",
        "run": "r1",
        "call": "c1",
        "phase": "call",
        "call_kind": "mcp",
        "server": "notes",
        "target": "notes__add",
        "principal": "triage",
        "session": "s1",
        "decision": "deny",
        "rule": "house/no-writes",
        "rules": ["house/no-writes", "house/quiet"],
        "revision": "rev1",
        "definition": "d" * 64,
        "would": "ask",
        "would_rule": "gating/writes",
        "error": "type",
        "labels": ["outside"],
        "arguments": "a" * 64,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
    }
    assert (start["kind"], start["name"], start["pid"]) == ("start", "sidecar", os.getpid())
    assert stop == {"kind": "stop", "at": record["at"], "run": "r1"}
    assert trail.closed


async def test_an_answer_and_its_use(trail: Memory, bus: Bus) -> None:
    kept = await opened(trail, bus)
    same: dict[str, Any] = {
        "target": "notes__add",
        "server": "notes",
        "principal": "triage",
        "session": "",
        "rules": ("gating/writes",),
        "by": "uid:alice",
        "way": "socket",
        "why": "it is hers",
    }
    bus.publish(ParkedAnswered(call="p1", approve=True, arguments="a" * 64, **same))
    taken: dict[str, Any] = {**same, "call": "p1", "before": "approved", "ran_as": "c7"}
    bus.publish(ParkedChanged(state="taken", here=True, **taken))
    # Another node runs it, and tells in its own trail.
    bus.publish(ParkedChanged(state="taken", here=False, **taken))
    bus.publish(ParkedChanged(state="done", here=True, **{**taken, "before": "taken"}))
    bus.publish(ParkedAnswered(call="p2", approve=False, **same))
    assert await kept.written()
    told = trail.records[1:]
    assert [each["kind"] for each in told] == ["answer", "approval_used", "answer"]
    assert [each.get("answer") for each in told] == ["approve", None, "deny"]
    assert told[0]["arguments"] == "a" * 64
    assert (told[1]["call"], told[1]["approval"]) == ("c7", "p1")
    for each in told:
        assert (each["by"], each["way"], each["why"]) == ("uid:alice", "socket", "it is hers")
    await kept.close()


async def test_a_long_target_is_cut(trail: Memory, bus: Bus) -> None:
    kept = await opened(trail, bus)
    bus.publish(decided(target="file:///" + "x" * 5000))
    assert await kept.written()
    assert len(trail.records[1]["target"]) == audit.LONGEST_TEXT + 1
    await kept.close()


# ------------------------------------------------------------------------------- writing


async def test_what_comes_while_a_batch_is_written_is_the_next_batch(
    trail: Memory, bus: Bus
) -> None:
    kept = await opened(trail, bus)
    trail.free.clear()
    bus.publish(decided("c1"))
    first = asyncio.create_task(kept.written())
    await eventually(lambda: kept.waiting == 0, within=30)
    for number in range(2, 12):
        bus.publish(decided(f"c{number}"))
    second = asyncio.create_task(kept.written())
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    trail.free.set()
    assert await first
    assert await second
    assert [len(batch) for batch in trail.batches] == [1, 1, 10]
    assert await kept.written()
    await kept.close()


async def test_a_batch_that_fails_is_told_to_all_who_wait_and_counted_in_the_next(
    trail: Memory, bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    kept = await opened(trail, bus)
    trail.fail = OSError(errno.ENOSPC, "No space left on device")
    for number in range(3):
        bus.publish(decided(f"c{number}"))
    assert await asyncio.gather(*(kept.written() for _ in range(3))) == [False] * 3
    assert "3 records could not be written: No space left on device" in caplog.text
    assert kept.failed == 3
    trail.fail = None
    bus.publish(decided("c9"))
    assert await kept.written()
    lost, record = trail.records[1:]
    assert (lost["kind"], lost["records"], lost["why"]) == ("lost", 3, "No space left on device")
    assert record["call"] == "c9"
    await kept.close()
    assert trail.kinds == ["start", "lost", "decision", "stop"]


async def test_a_disk_that_hangs_is_one_that_fails(trail: Memory, bus: Bus) -> None:
    kept = await opened(trail, bus, patience=0.05)
    trail.free.clear()
    bus.publish(decided())
    assert not await kept.written()
    await kept.close()
    trail.free.set()


async def test_the_queue_is_bounded(
    trail: Memory, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_WAITING", 5)
    kept = await opened(trail, bus)
    for number in range(8):
        bus.publish(decided(f"c{number}"))
    assert kept.waiting == 5
    assert not await kept.written()
    assert kept.failed == 3
    bus.publish(decided("c9"))
    assert await kept.written()
    assert [each["records"] for each in trail.records if each["kind"] == "lost"] == [3]
    await kept.close()


async def test_what_is_told_last_is_written_before_it_ends(trail: Memory, bus: Bus) -> None:
    kept = await opened(trail, bus)
    for number in range(100):
        bus.publish(decided(f"c{number}"))
    await kept.close()
    assert trail.kinds == ["start", *["decision"] * 100, "stop"]
    # Nobody listens any more, and nothing is promised.
    bus.publish(decided())
    assert len(trail.records) == 102
    await kept.close()


async def test_a_trail_that_cannot_be_written_does_not_start(trail: Memory, bus: Bus) -> None:
    trail.fail = OSError(errno.EACCES, "Permission denied")
    with pytest.raises(PermissionError):
        await opened(trail, bus)
    assert not bus.wanted(Decided)


# ------------------------------------------------------------------------ a real sidecar


def records(file: Path) -> list[dict[str, Any]]:
    files = [*rotated(file), file]
    lines = [line for each in files for line in each.read_bytes().splitlines(keepends=True)]
    # A kill may have cut off the last one.
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def config(folder: Path, **other: Any) -> dict[str, Any]:
    given = {"servers": {"notes": {**NOTES, "gated": False}}, "audit": str(folder / "audit.jsonl")}
    return {**given, "policy": {"shipped": list(SHIPPED)}, **other}


async def call(
    http: aiohttp.ClientSession, sidecar: Sidecar, text: str = "x", name: str = "notes__add"
) -> dict[str, Any]:
    given = {"text": text} if name == "notes__add" else {"query": text}
    return await Modern(http, sidecar.mcp).call(name, **given)


def limit(sidecar: Sidecar, size: int) -> None:
    """No file may grow beyond: what a full disk is like."""
    _, hard = resource.prlimit(sidecar.worker, resource.RLIMIT_FSIZE)
    resource.prlimit(sidecar.worker, resource.RLIMIT_FSIZE, (size, hard))


async def listed(http: aiohttp.ClientSession, sidecar: Sidecar) -> None:
    client = Legacy(http, sidecar.mcp)
    await client.open()
    await client.until_listed("notes__add")


async def test_who_approved_what_is_there_and_arguments_are_not(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    gated = config(tmp_path, servers={"notes": NOTES}, parking={"hold": "50s"})
    async with aiohttp.ClientSession() as http, running(gated) as sidecar:
        await listed(http, sidecar)
        calling = asyncio.create_task(call(http, sidecar, "a-secret-of-hers"))
        done = await asyncio.to_thread(_approve_the_first, sidecar)
        assert done.returncode == 0, done.stderr
        answer = await calling
        assert not answer.get("isError")
    told = records(file)
    assert "a-secret-of-hers" not in file.read_text()
    asked, answered, anew, used, result = _about_call(told)
    assert (asked["decision"], asked["phase"]) == ("ask", "call")
    assert (answered["answer"], answered["way"], answered["why"]) == ("approve", "socket", "hers")
    assert answered["by"].startswith("uid:")
    assert (used["approval"], used["by"]) == (answered["call"], answered["by"])
    assert anew["decision"] == "ask"
    assert (result["phase"], result["decision"]) == ("result", "allow")
    assert asked["arguments"] == anew["arguments"]
    assert len(asked["arguments"]) == 64
    assert told[0]["kind"] == "start"
    assert told[-1]["kind"] == "stop"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    report = verify([file])
    assert (report.breaks, report.notices) == ([], [])


def _about_call(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        each
        for each in told
        if each["kind"] in ("answer", "approval_used")
        or (each["kind"] == "decision" and each["phase"] in ("call", "result"))
    ]


def _approve_the_first(sidecar: Sidecar) -> subprocess.CompletedProcess[str]:
    import time

    end = time.monotonic() + 40
    while time.monotonic() < end:
        listing = sidecar.cli("calls", "--state", "waiting", "--json")
        found = json.loads(listing.stdout or "[]")
        if found:
            return sidecar.cli("calls", "approve", found[0]["id"], "--why", "hers")
        time.sleep(0.1)
    raise AssertionError("no call waits")


async def test_every_call_that_was_answered_has_its_record_after_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    answered: list[str] = []
    async with aiohttp.ClientSession() as http:
        async with running(config(tmp_path)) as sidecar:
            await listed(http, sidecar)

            async def go_on() -> None:
                client = Modern(http, sidecar.mcp)
                while True:
                    told = await client.call("notes__add", text="x")
                    answered.append(told["_meta"]["sidecar/call"])

            callers = [asyncio.create_task(go_on()) for _ in range(8)]
            await eventually(lambda: len(answered) > 100, within=30)
            os.kill(sidecar.worker, signal.SIGKILL)
            await asyncio.gather(*callers, return_exceptions=True)
            await asyncio.to_thread(sidecar.wait)
        told = records(file)
        results = [each["call"] for each in told if each.get("phase") == "result"]
        assert set(answered) <= set(results)
        report = verify([file])
        assert report.breaks == []
        assert "the last record is no stop" in report.notices[-1]
        async with running(config(tmp_path)) as sidecar:
            await listed(http, sidecar)
            await call(http, sidecar)
    after = verify([file], report.head)
    assert (after.breaks, after.notices) == ([], [])
    assert after.records > report.records


async def test_a_full_disk_denies_until_there_is_room_again(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with aiohttp.ClientSession() as http, running(config(tmp_path)) as sidecar:
        await listed(http, sidecar)
        assert not (await call(http, sidecar)).get("isError")
        before = len(records(file))
        limit(sidecar, file.stat().st_size + 10)
        denied = await call(http, sidecar)
        assert denied["isError"] is True
        assert denied["_meta"]["sidecar/denied"]["rule"] == "audit/unwritten"
        assert "audit record" in denied["content"][0]["text"]
        # One that only reads, too: nothing passes without a record.
        assert (await call(http, sidecar, name="notes__search"))["isError"] is True
        assert len(records(file)) == before
        assert verify([file]).ok
        limit(sidecar, resource.RLIM_INFINITY)
        listing = await call(http, sidecar)
        assert not listing.get("isError")
        told = records(file)[before:]
        assert told[0]["kind"] == "lost"
        assert told[0]["records"] >= 2
        assert "File too large" in told[0]["why"]
        assert "records could not be written: File too large" in sidecar.log()
        assert verify([file]).ok


async def test_who_would_rather_go_on_says_so(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    lenient = config(tmp_path, audit={"file": str(file), "unwritten": "allow"})
    async with aiohttp.ClientSession() as http, running(lenient) as sidecar:
        await listed(http, sidecar)
        limit(sidecar, file.stat().st_size + 10)
        assert not (await call(http, sidecar)).get("isError")
        limit(sidecar, resource.RLIM_INFINITY)
        assert not (await call(http, sidecar)).get("isError")
    assert [each["kind"] for each in records(file)].count("lost") == 1


async def test_two_sidecars_write_one_trail(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    shared = config(tmp_path, audit={"file": str(file), "rotate": "16KiB"})
    async with (
        aiohttp.ClientSession() as http,
        running(shared) as one,
        running(shared) as other,
    ):
        await asyncio.gather(listed(http, one), listed(http, other))
        answers = await asyncio.gather(
            *(call(http, sidecar) for sidecar in (one, other) for _ in range(40))
        )
        assert not any(each.get("isError") for each in answers)
    files = [*rotated(file), file]
    assert len(files) > 2
    report = verify(files)
    assert report.breaks == []
    told = records(file)
    runs = {each["run"] for each in told}
    assert len(runs) == 2
    for run in runs:
        mine = [each for each in told if each["run"] == run]
        assert sum(each.get("phase") == "call" for each in mine) == 40


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_text("these are my notes\n")
    sidecar = Sidecar(config(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "run", "--config", str(sidecar.file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert f"audit: {tmp_path}/audit.jsonl: does not end with a record" in done.stderr
    assert (tmp_path / "audit.jsonl").read_text() == "these are my notes\n"


async def test_an_answer_is_written_before_whoever_gave_it_hears(tmp_path: Path) -> None:
    """The sidecar is killed the moment that the verb returns."""
    file = tmp_path / "audit.jsonl"
    gated = config(tmp_path, servers={"notes": NOTES}, parking={"hold": "50s"})
    async with aiohttp.ClientSession() as http, running(gated) as sidecar:
        await listed(http, sidecar)
        calling = asyncio.create_task(call(http, sidecar))
        done = await asyncio.to_thread(_approve_the_first, sidecar)
        os.kill(sidecar.worker, signal.SIGKILL)
        assert done.returncode == 0, done.stderr
        await asyncio.gather(calling, return_exceptions=True)
        await asyncio.to_thread(sidecar.wait)
    assert [each["answer"] for each in records(file) if each["kind"] == "answer"] == ["approve"]


# ---------------------------------------------------------------------------- the verb


class Verb:
    """``sidecar audit verify`` in this process: a code, and what was written to both streams."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main(["audit", "verify", *arguments])
        told = self._capsys.readouterr()
        return code, told.out, told.err


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, verb = tmp_path / "audit.jsonl", Verb(capsys)
    with started(config(tmp_path)) as sidecar:
        code, out, _ = verb(str(file))
        assert (code, "no stop" in out) == (0, True)
    # The configuration says where it is.
    done = sidecar.cli("audit", "verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the chain holds" in done.stdout
    head = done.stdout.splitlines()[-1].removeprefix("head ")
    assert f"audit: ends with record {head}" in sidecar.log()
    assert verb(str(file), "--head", head)[0] == 0
    first, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first.replace(b'"pid":', b'"pid":1') + b"".join(rest))
    code, out, _ = verb(str(file))
    assert code == 4
    assert out.startswith(f"{file}:1: record 1 is not what it was")
    code, out, _ = verb("--json", str(file))
    told = json.loads(out)
    assert (code, told["ok"], told["records"]) == (4, False, 1 + len(rest))
    assert (told["breaks"][0]["file"], told["breaks"][0]["line"]) == (str(file), 1)
    file.write_bytes(first)
    code, out, _ = verb("--head", head, str(file))
    assert (code, "before" in out) == (4, True)
    assert verb(str(file), "--head", "x")[0] == 2
    assert verb(str(tmp_path / "absent")) == (
        1,
        "",
        f"{tmp_path}/absent: No such file or directory\n",
    )


def test_verify_reads_what_the_file_was_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, verb = tmp_path / "audit.jsonl", Verb(capsys)
    trail = ChainFile(file, 200)
    trail.append([b'{"kind":"decision"}'] * 10)
    assert len(rotated(file)) > 2
    code, out, _ = verb(str(file))
    assert (code, "10 records in" in out) == (0, True)
    code, out, _ = verb("--only", str(file))
    assert (code, "10 records in" in out) == (0, False)
    assert "those before it are in no file that was given" in out
    rotated(file)[1].unlink()
    code, out, _ = verb(str(file))
    assert (code, "should stand before this one" in out) == (4, True)


def test_verify_without_a_trail_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sidecar.yaml").write_text("listen: off\n")
    code, _, err = Verb(capsys)("--config", str(tmp_path / "sidecar.yaml"))
    assert (code, "names no file as audit" in err) == (2, True)


def test_the_log_says_where_it_stands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever keeps the log elsewhere has a head that nobody can write anew."""
    caplog.set_level(logging.INFO, "sidecar.audit")
    file = tmp_path / "audit.jsonl"
    trail = ChainFile(file, 10)
    trail.append([b'{"kind":"x"}'])
    head = trail.append([b'{"kind":"x"}'])
    assert head.seq == 2
    assert f"a full file is now {file}.0000000001; its last record is 1:" in caplog.text
