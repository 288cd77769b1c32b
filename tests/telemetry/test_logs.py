"""Log lines: JSON for programs, text for people, with traces, to stderr and to a receiver."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from sidecar import logs
from sidecar.config import Config, LogConfig
from sidecar.events import Bus, CallFinished
from sidecar.model import TraceContext
from sidecar.ports.tracer import CURRENT
from sidecar.telemetry import logs_access
from sidecar.telemetry.audit import Audit, configured
from sidecar.telemetry.audit_chain import verify
from sidecar.telemetry.environ import SettingError
from sidecar.telemetry.logs_access import AccessLog, Written
from sidecar.telemetry.logs_house import Logs
from tests.kit.client import Legacy, eventually
from tests.kit.running import Sidecar, running
from tests.telemetry.receiver import attributes, receiving

NOTES: dict[str, Any] = {"command": [sys.executable, "-m", "sidecar.demo.notes"], "trusted": True}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
KEPT = TraceContext(f"00-{TRACE}-{SPAN}-01")
log = logging.getLogger("sidecar.something")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def restored() -> Iterator[None]:
    """Whatever a test does to the root logger."""
    root, own = logging.getLogger(), logging.getLogger("sidecar")
    before = (list(root.handlers), root.level, own.level)
    yield
    root.handlers[:], root.level = before[0], before[1]
    own.setLevel(before[2])


@pytest.fixture
def stderr(restored: None) -> io.StringIO:
    return io.StringIO()


def call(**other: Any) -> CallFinished:
    said: dict[str, Any] = {
        "trace": KEPT,
        "call": "c1",
        "method": "tools/call",
        "server": "notes",
        "target": "notes__add",
        "principal": "agent",
        "session": "",
        "outcome": "ok",
        "seconds": 0.0301234,
        "attempts": 1,
        "kind": "mcp",
        "decision": "allow",
        "rule": "default",
    }
    return CallFinished(**{**said, **other})


# ------------------------------------------------------------------------------- the lines


def test_a_line_is_json_where_no_terminal_is(stderr: io.StringIO) -> None:
    logs.configure(LogConfig(), {}, stderr)
    log.info("server %s is back", "notes")
    [line] = stderr.getvalue().splitlines()
    told = json.loads(line)
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "info",
        "logger": "sidecar.something",
        "message": "server notes is back",
    }


def test_a_line_is_text_at_a_terminal(restored: None) -> None:
    stream = Terminal()
    logs.configure(LogConfig(), {}, stream)
    log.warning("server %s is gone", "notes")
    assert stream.getvalue()[8:] == " WARNING sidecar.something: server notes is gone\n"


@pytest.mark.parametrize(
    ("config", "environ", "json_lines"),
    [
        (LogConfig(format="text"), {}, False),
        (LogConfig(format="json"), {"SIDECAR_LOG_FORMAT": "text"}, False),
        (LogConfig(format="text"), {"SIDECAR_LOG_FORMAT": "JSON"}, True),
        (LogConfig(format="text"), {"SIDECAR_LOG_FORMAT": "auto"}, True),
    ],
)
def test_formats(
    stderr: io.StringIO, config: LogConfig, environ: dict[str, str], json_lines: bool
) -> None:
    logs.configure(config, environ, stderr)
    log.info("here")
    assert stderr.getvalue().startswith("{") is json_lines


def test_levels(stderr: io.StringIO) -> None:
    logs.configure(LogConfig(level="warning"), {}, stderr)
    log.info("one")
    logs.configure(LogConfig(level="warning"), {"SIDECAR_LOG_LEVEL": "debug"}, stderr)
    log.debug("two")
    logs.configure(LogConfig(level="error"), {"SIDECAR_LOG_LEVEL": "loud"}, stderr)
    log.warning("three")
    log.error("four")
    logging.getLogger("aiohttp").info("five")
    logging.getLogger("aiohttp").warning("six")
    told = [json.loads(line) for line in stderr.getvalue().splitlines()]
    wrong = "SIDECAR_LOG_LEVEL is none of debug, info, warning, error; it is ignored"
    assert [(each["level"], each["message"]) for each in told] == [
        ("debug", "two"),
        ("warning", wrong),
        ("error", "four"),
        ("warning", "six"),
    ]


def test_a_line_of_a_request_has_its_trace(stderr: io.StringIO) -> None:
    logs.configure(LogConfig(), {}, stderr)
    token = CURRENT.set(KEPT)
    log.info("within")
    CURRENT.reset(token)
    log.info("outside")
    within, outside = (json.loads(line) for line in stderr.getvalue().splitlines())
    assert (within["trace_id"], within["span_id"]) == (TRACE, SPAN)
    assert "trace_id" not in outside


def test_an_exception_is_one_line_too(stderr: io.StringIO) -> None:
    logs.configure(LogConfig(), {}, stderr)
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("it failed")
    [line] = stderr.getvalue().splitlines()
    told = json.loads(line)
    assert told["level"] == "error"
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("KeyError: 'x'")


def test_half_a_surrogate_pair_breaks_no_line(stderr: io.StringIO) -> None:
    logs.configure(LogConfig(), {}, stderr)
    log.info("a\ud800b\nc")
    assert json.loads(stderr.getvalue())["message"] == "a?b\nc"


# -------------------------------------------------------------------------- the access log


async def lines_of(event: CallFinished, config: LogConfig, stream: io.StringIO) -> list[str]:
    logging.getLogger("sidecar").setLevel(logging.INFO)
    bus = Bus()
    access = AccessLog(bus, config, stream=stream, clock=lambda: 1_800_000_000.5)
    bus.publish(event)
    await access.close()
    bus.publish(event)
    return stream.getvalue().splitlines()


async def test_a_call_is_a_line(restored: None) -> None:
    event = call(session="s1", outcome="denied", decision="deny", rule="house/no", error="denied")
    [line] = await lines_of(event, LogConfig(access=True), io.StringIO())
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00.500000Z",
        "level": "info",
        "logger": "sidecar.access",
        "message": "tools/call notes__add for agent: denied in 30 ms; deny by house/no",
        "call": "c1",
        "method": "tools/call",
        "server": "notes",
        "target": "notes__add",
        "principal": "agent",
        "session": "s1",
        "decision": "deny",
        "rule": "house/no",
        "outcome": "denied",
        "error": "denied",
        "seconds": 0.030123,
        "attempts": 1,
        "trace_id": TRACE,
        "span_id": SPAN,
    }


async def test_a_call_at_a_terminal_cannot_steer_it(restored: None) -> None:
    event = call(target="file:///\x1b[2J\nnext", kind="resource", outcome="rpc_error", error="-3")
    [line] = await lines_of(event, LogConfig(access=True), Terminal())
    assert line[8:] == (
        " INFO sidecar.access: tools/call file:///\\u001b[2J\\nnext for agent: rpc_error (-3) "
        "in 30 ms; allow by default"
    )


async def test_a_long_target_is_cut(restored: None) -> None:
    [line] = await lines_of(call(target="x" * 9000), LogConfig(access=True), io.StringIO())
    assert len(json.loads(line)["target"]) == logs_access.LONGEST_TARGET + 1


async def test_no_line_unless_it_is_asked_for(restored: None) -> None:
    assert await lines_of(call(), LogConfig(), io.StringIO()) == []
    bus = Bus()
    access = AccessLog(bus, LogConfig())
    assert not bus.wanted(CallFinished)
    access.reconfigure(LogConfig(access=True))
    assert bus.wanted(CallFinished)
    access.reconfigure(LogConfig())
    assert not bus.wanted(CallFinished)
    await access.close()


async def test_lines_come_together_and_soon() -> None:
    class Counting(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            return super().write(text)

    stream = Counting()
    written = Written(stream)
    for number in range(1000):
        written.put(f"line {number}")
    assert stream.writes == 0
    await eventually(lambda: stream.getvalue().count("\n") == 1000, within=30)
    assert stream.writes == 1
    await written.close()


async def test_a_reader_that_is_slow_costs_lines_and_holds_up_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        written = Written(stream)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(200):
            for _ in range(500):
                written.put("x" * 100)
            await asyncio.sleep(0.001)
        # Ten megabytes were put, and nobody has read one of them.
        assert loop.time() - began < 30
        got: list[bytes] = []

        def drain() -> None:
            while chunk := os.read(read, 1 << 16):
                got.append(chunk)

        reading = asyncio.create_task(asyncio.to_thread(drain))
        written.put("last")
        await written.close(20)
    await reading
    os.close(read)
    lines = b"".join(got).decode().splitlines()
    assert 1000 < len(lines) < 100_000
    assert "lines of the access log were lost" in caplog.text


def test_a_reader_that_never_reads_keeps_no_process_from_ending() -> None:
    program = (
        "import asyncio, os\n"
        "from sidecar.telemetry.logs_access import Written\n"
        "read, write = os.pipe()\n"
        "async def main():\n"
        "    written = Written(os.fdopen(write, 'w'))\n"
        "    for _ in range(5000): written.put('x' * 100)\n"
        "    await written.close(0.2)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True)


# ------------------------------------------------------------------------------ a receiver


async def test_lines_go_to_a_receiver(restored: None) -> None:
    logging.getLogger("sidecar").setLevel(logging.INFO)
    async with receiving() as receiver:
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BLRP_SCHEDULE_DELAY": "20"}
        bus = Bus()
        house = Logs(Config(name="desk", log=LogConfig(access=True)), bus, given)
        await house.start()
        token = CURRENT.set(KEPT)
        log.warning("within %d", 1)
        CURRENT.reset(token)
        try:
            raise KeyError("x")
        except KeyError:
            log.exception("it failed")
        bus.publish(call(error="tool_error", outcome="tool_error"))
        await house.close()
        log.info("too late")
        told, resource = receiver.logs, receiver.resource("/v1/logs")
    within, failed, access = told
    assert resource["service.name"] == "desk"
    assert (within.body.string_value, within.severity_text) == ("within 1", "WARNING")
    assert (within.severity_number, within.flags) == (13, 1)
    assert (within.trace_id.hex(), within.span_id.hex()) == (TRACE, SPAN)
    assert attributes(within.attributes) == {"logger": "sidecar.something"}
    assert failed.severity_number == 17
    assert attributes(failed.attributes)["exception.type"] == "KeyError"
    assert access.event_name == "sidecar.call"
    said = attributes(access.attributes)
    assert (said["sidecar.call"], said["error.type"]) == ("c1", "tool_error")
    assert access.body.string_value.startswith("tools/call notes__add for agent: tool_error in")
    assert access.trace_id.hex() == TRACE


async def test_what_the_exporter_says_of_itself_is_not_exported(restored: None) -> None:
    async with receiving() as receiver:
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        house = Logs(Config(), Bus(), given)
        await house.start()
        logging.getLogger("sidecar.telemetry").warning("nobody answers")
        await house.close()
        assert receiver.logs == []


def test_what_cannot_be_had_is_told() -> None:
    with pytest.raises(SettingError, match="OTEL_LOGS_EXPORTER"):
        Logs(Config(), Bus(), {"OTEL_LOGS_EXPORTER": "carrier-pigeon"})
    with pytest.raises(SettingError, match="OTEL_EXPORTER_OTLP_PROTOCOL"):
        given = {"OTEL_LOGS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
        Logs(Config(), Bus(), given)
    assert Logs(Config(), Bus(), {}).export is None


async def test_the_audit_trail_goes_to_a_receiver_in_a_chain(tmp_path: Path) -> None:
    from sidecar.config import AuditConfig
    from tests.telemetry.test_audit import decided

    async with receiving() as receiver:
        given = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{receiver.url}/v1/logs"}
        given["OTEL_LOGS_EXPORTER"] = "none"
        bus = Bus()
        house = Logs(Config(audit=AuditConfig("otlp")), bus, given)
        trail = configured(Config(audit=AuditConfig("otlp")), bus, house.trail)
        assert isinstance(trail, Audit)
        await house.start()
        await trail.start()
        log.warning("no line is exported: only the trail was asked for")
        for number in range(3):
            bus.publish(decided(f"c{number}"))
        assert await trail.written()
        await trail.close()
        await house.close()
        told = receiver.logs
    assert {each.event_name for each in told} == {"sidecar.audit"}
    assert [attributes(each.attributes)["sidecar.audit.seq"] for each in told] == [1, 2, 3, 4, 5]
    file = tmp_path / "exported.jsonl"
    file.write_text("".join(each.body.string_value + "\n" for each in told))
    report = verify([file])
    assert (report.breaks, report.notices, report.records) == ([], [], 5)


# ------------------------------------------------------------------------ a real sidecar


async def test_a_sidecar_writes_lines_that_programs_read(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "servers": {"notes": {**NOTES, "gated": False}},
        "log": {"access": True},
    }
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("notes__add")
        meta = {"traceparent": KEPT.traceparent}
        await client.request(
            "tools/call",
            {"name": "notes__add", "arguments": {"text": "s3cr3t"}, "_meta": meta},
        )

        def access() -> list[dict[str, Any]]:
            told = [json.loads(line) for line in sidecar.log().splitlines()]
            return [each for each in told if each["logger"] == "sidecar.access"]

        await eventually(access, within=30)
        [line] = access()
        assert line["trace_id"] == TRACE
        assert (line["target"], line["decision"], line["rule"]) == (
            "notes__add",
            "allow",
            "default",
        )
        # Taken over without a restart.
        sidecar.write({**sidecar.config, "log": {"access": False}})
        await eventually(lambda: "reloaded: settings: log" in sidecar.log(), within=30)
        await client.call("notes__add", text="s3cr3t")
        await asyncio.sleep(0.3)
        assert len(access()) == 1
        assert "s3cr3t" not in sidecar.log()


def test_a_sidecar_at_a_terminal_writes_text(tmp_path: Path) -> None:
    sidecar = Sidecar({})
    file = tmp_path / "sidecar.yaml"
    file.write_text(yaml.safe_dump(sidecar.config))
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sidecar", "run", "--config", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
        start_new_session=True,
    )
    os.close(follower)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("sidecar ready ")
        process.terminate()
        assert process.wait(30) == 0
        text = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(leader, 1 << 16):
                text += chunk
    finally:
        process.kill()
        process.wait(30)
        os.close(leader)
    lines = text.decode().splitlines()
    assert any(" INFO sidecar: draining" in line for line in lines)
    assert not any(line.startswith("{") for line in lines)
