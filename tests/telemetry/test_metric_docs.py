"""What docs and dashboards say of metrics is so: every name, every query, every answer."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jq
import pytest
import yaml

from sidecar import semconv
from sidecar.config import AuditConfig, Config
from sidecar.events import Bus
from sidecar.telemetry import audit
from sidecar.telemetry.measures import Measures
from sidecar.telemetry.metrics import Instrument
from sidecar.telemetry.prometheus import label, name_of
from tests.kit.client import Legacy, eventually
from tests.kit.running import running

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "telemetry.md").read_text()
QUERIES = (DOCS / "telemetry-queries.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DASHBOARDS = sorted((DOCS / "dashboards").glob("*.json"))


def instruments() -> dict[str, Instrument]:
    measures = Measures("sidecar", Bus(), {})
    measures.servers(list)
    measures.parked(dict)
    return {each.name: each for each in measures.registry}


def blocks(language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(QUERIES) if kind == language]


def alerts() -> list[str]:
    [rules] = blocks("yaml")
    return [rule["expr"] for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]]


def panels() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Dashboard, panel and target."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield path.name, panel, target


def promql() -> list[str]:
    """Every query in PromQL that is shown anywhere, without Grafana's own variables."""
    found = [*blocks("promql"), *alerts()]
    found += [target["expr"] for _, _, target in panels() if "expr" in target]
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            query = variable["query"]
            if isinstance(query, dict):
                found.append(re.sub(r"label_values\((.*), *\w+\)", r"\1", query["query"]))
    plain = {"$instance": ".*", "$server": ".*", "$__rate_interval": "5m", "$__range": "1h"}
    for name, value in plain.items():
        found = [query.replace(name, value) for query in found]
    assert not any("$" in query for query in found)
    return found


def test_the_table_has_every_metric_as_it_is() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (\w+) \| `([^`]+)` \|(.*)\|$", PAGE, re.MULTILINE)
    told = {name: (kind, unit, re.findall(r"`([^`]+)`", keys)) for name, kind, unit, keys in rows}
    server = told["mcp.server.operation.duration"][2]
    client = told["mcp.client.operation.duration"]
    told["mcp.client.operation.duration"] = (*client[:2], [*server, *client[2]])
    real = {name: (each.kind, each.unit, sorted(each.keys)) for name, each in instruments().items()}
    assert {name: (*row[:2], sorted(row[2])) for name, row in told.items()} == real


def test_every_name_is_one_of_the_names() -> None:
    known = {value for name, value in vars(semconv.Metric).items() if name.isupper()}
    assert set(instruments()) == known


def test_every_query_names_metrics_and_labels_that_there_are() -> None:
    metrics: dict[str, set[str]] = {}
    for each in instruments().values():
        name, labels = name_of(each), {label(key) for key in each.keys}
        if each.kind == "histogram":
            metrics |= {f"{name}_bucket": labels | {"le"}}
            metrics |= {f"{name}_sum": labels, f"{name}_count": labels}
        else:
            metrics[f"{name}_total" if each.kind == "counter" else name] = labels
    queries = promql()
    assert len(queries) > 40
    for query in queries:
        named = set(re.findall(r"\b(?:sidecar|mcp|process|gen_ai)_[a-z_]+\b", query))
        used = named & metrics.keys()
        assert used, query
        allowed = set().union(*(metrics[name] for name in used))
        assert named - used <= allowed, (query, named - used - allowed)


def test_every_metric_is_on_a_dashboard() -> None:
    shown = " ".join(target.get("expr", "") for _, _, target in panels())
    missing = [each.name for each in instruments().values() if name_of(each) not in shown]
    assert missing == [
        "mcp.server.session.duration",
        "mcp.client.session.duration",
        "process.unix.file_descriptor.count",
        "process.uptime",
    ]


def test_every_query_of_traces_names_what_spans_have() -> None:
    names = {v for k, v in vars(semconv.Names).items() if k.isupper()}
    keys = {
        value
        for group in (semconv.Mcp, semconv.GenAi, semconv.Key)
        for name, value in vars(group).items()
        if name.isupper()
    }
    queries = blocks("traceql")
    queries += [t["query"] for _, _, t in panels() if t.get("queryType") == "traceql"]
    assert len(queries) > 10
    for query in queries:
        used = set(re.findall(r"\bspan\.([a-z_.]+)", query))
        assert used <= keys, (query, used - keys)
        assert set(re.findall(r'(?<![.\w])name = "([^"]+)"', query)) <= names, query


def test_dashboards_are_whole() -> None:
    assert [path.name for path in DASHBOARDS] == ["sidecar.json", "traces.json"]
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        sources = {each["name"] for each in board["templating"]["list"]}
        for panel in board["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24, panel["title"]
            if panel["type"] != "row":
                assert panel["datasource"]["uid"].strip("${}") in sources
                assert panel["targets"], panel["title"]
    assert all(path.name in QUERIES for path in DASHBOARDS)


def test_the_table_of_records_has_every_kind() -> None:
    section = PAGE.split("## The audit trail")[1].split("### A chain")[0]
    told = {
        kind
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for kind in re.findall(r"`(\w+)`", row)
        if kind != "kind"
    }
    source = (
        Path(audit.__file__).read_text()
        + Path(audit.__file__).with_name("audit_file.py").read_text()
    )
    written = set(re.findall(r'_(?:record|about)\(\s*"(\w+)"', source))
    assert told == written
    assert AuditConfig().rotate == 64 << 20
    assert "(64 MiB)" in PAGE
    assert Config().audit.to == "off"


# ------------------------------------------------------------ the questions, of a real sidecar

POLICY = """
apiVersion: sidecar/v1
kind: Policy
name: house
rules:
  - id: no-secrets
    on: call
    effect: deny
    when: args.?text.orValue("").contains("secret")
    message: '"no secrets"'
  - id: ask-for-plans
    on: call
    effect: ask
    when: args.?text.orValue("").contains("plan")
    message: '"a person looks at plans"'
"""

WEB = (
    "import sys\n"
    "from sidecar.demo.server import DemoServer, DemoTool\n"
    "tool = DemoTool('read', 'Read.', {}, [], lambda a: 'from outside')\n"
    "server = DemoServer('web', [tool])\n"
    "for line in sys.stdin.buffer:\n"
    "    if answer := server.answer(line):\n"
    "        sys.stdout.buffer.write(answer + b'\\n'); sys.stdout.buffer.flush()\n"
)


async def lived(folder: Path) -> dict[str, str]:
    """A sidecar that has read, written, been denied and been approved; ids of its calls."""
    (folder / "house.yaml").write_text(POLICY)
    config: dict[str, Any] = {
        "servers": {
            "notes": {
                "command": [sys.executable, "-m", "sidecar.demo.notes"],
                "trusted": True,
                "gated": False,
            },
            "web": {"command": [sys.executable, "-c", WEB], "gated": False},
        },
        "policies": [str(folder / "house.yaml")],
        "policy": {"shipped": ["labels"]},
        "parking": {"hold": "50s"},
        "audit": str(folder / "audit.jsonl"),
        "log": {"access": True},
    }
    ids: dict[str, str] = {}
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("notes__add", "web__read")

        async def call(what: str, name: str, **arguments: Any) -> None:
            result = await client.call(name, **arguments)
            ids[what] = result["_meta"]["sidecar/call"]

        await call("read", "web__read")
        await call("write", "notes__add", text="hello")
        await call("denied", "notes__add", text="my secret")
        asking = asyncio.create_task(call("approved", "notes__add", text="a plan"))

        async def waiting() -> list[Any]:
            listing = await asyncio.to_thread(sidecar.cli, "calls", "--state", "waiting", "--json")
            found: list[Any] = json.loads(listing.stdout)
            return found

        for _ in range(100):
            if found := await waiting():
                break
        done = await asyncio.to_thread(
            sidecar.cli, "calls", "approve", found[0]["id"], "--why", "it is a good plan"
        )
        assert done.returncode == 0, done.stderr
        await asking
        pinned = await asyncio.to_thread(sidecar.cli, "tools", "pin", "notes__add")
        assert pinned.returncode == 0, pinned.stderr

        def lines() -> list[str]:
            return [line for line in sidecar.log().splitlines() if line.startswith("{")]

        def ended() -> bool:
            return sum('"sidecar.access"' in line for line in lines()) == len(ids)

        await eventually(ended, within=30)
        (folder / "sidecar.log").write_text("\n".join(lines()) + "\n")
    return ids


def asked(block: str, folder: Path, **arguments: str) -> list[str]:
    """Run a block as its first line says, and split what it prints at tabs."""
    head, _, program = block.partition("\n")
    file, *options = head.removeprefix("# ").split()
    args = {name: arguments[name] for name in options if name in arguments}
    found = jq.compile(program, args=args)
    text = (folder / file).read_text()
    if "-s" in options:
        given = found.input_value([json.loads(line) for line in text.splitlines()])
    else:
        given = found.input_text(text)
    return [str(each) for each in given.all()]


async def test_the_questions_have_the_answers_of_what_happened(tmp_path: Path) -> None:
    ids = await lived(tmp_path)
    programs = blocks("jq")

    def answers(words: str, call: str = "") -> list[list[str]]:
        [block] = [each for each in programs if words in each]
        programs.remove(block)
        return [row.split("\t") for row in asked(block, tmp_path, call=ids.get(call, ""))]

    def columns(rows: list[list[str]], *wanted: int) -> list[tuple[str, ...]]:
        return [tuple(row[n] for n in wanted) for row in rows]

    denied = answers('.decision == "deny")\n| [.at')
    assert columns(denied, 1, 2, 3) == [("agent", "notes__add", "house/no-secrets")]
    whole = answers(".approval == $call)", "approved")
    assert columns(whole, 1, 2, 3)[0] == ("decision", "call", "ask")
    assert "approval_used" in [row[1] for row in whole]
    assert columns(whole, 2, 3)[-1] == ("result", "allow")
    assert columns(answers(".seconds] | @tsv\n"), 1, 2, 3) == [
        ("agent", "notes__add", "house/no-secrets")
    ]
    assert answers('.would == "deny"') == []
    [answer] = answers('select(.kind == "answer")\n')
    assert answer[1:4] == ["approve", "notes__add", "agent"]
    assert answer[4].startswith("uid:")
    assert answer[5:] == ["socket", "it is a good plan"]
    [used] = answers('"approval_used" and .call == $call', "approved")
    assert used[:3] == answer[4:]
    [same] = answers("INDEX")
    assert (same[0], same[1]) == (ids["approved"], answer[4])
    assert re.fullmatch("[0-9a-f]{64}", same[2])
    [changed] = answers('"admin"')
    assert changed[1:] == [answer[4], "pins.accept", "notes__add", ""]
    read = answers("as $write", "write")
    assert columns(read, 1, 2) == [("web__read", "outside")]
    slowest = answers("sort_by(-.seconds)")
    assert len(slowest) == 4
    assert slowest[0][1:] == ["notes", "notes__add", "ok"]
    assert float(slowest[0][0]) > float(slowest[-1][0])
    # Every program on the page was asked.
    assert programs == []


@pytest.mark.parametrize("block", blocks("jq"), ids=range(len(blocks("jq"))))
def test_every_program_says_what_it_is_for(block: str) -> None:
    head = block.partition("\n")[0]
    assert re.fullmatch(r"# (audit\.jsonl|sidecar\.log)(  (-s ?)?(--arg call ID)?)?", head), head
