"""``sidecar egress check``: what it prints, and how it exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.cli import main
from tests.egress.kit import CASES

HERE = Path(__file__).parent
RULES = """
apiVersion: sidecar/v1
kind: Policy
name: op
rules:
  - id: office
    on: connect
    effect: allow
    when: 'addresses.all(a, cidr("10.0.0.0/8").containsIP(a.ip))'
    message: '"the office network"'
  - id: not-there
    on: connect
    effect: deny
    when: 'server.name == "local" && url.port == 9001'
    message: '"moved"'
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "sidecar.yaml").write_text(
        "policies: [rules.yaml]\nservers: {local: {url: 'http://127.0.0.1:9001/mcp'}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIDECAR_CONFIG", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            ["https://1.1.1.1/x?key=s3cret"],
            0,
            "https://1.1.1.1:443 may be dialled, by rule egress/public\n  1.1.1.1  public\n",
        ),
        (
            ["http://10.1.2.3/"],
            0,
            "http://10.1.2.3:80 may be dialled, by rule op/office: the office network\n"
            "  10.1.2.3  private\n",
        ),
        (
            ["http://192.168.0.1/"],
            4,
            "http://192.168.0.1:80 may not be dialled, by rule egress/private: "
            "the address is private: it is in a private network\n  192.168.0.1  private\n",
        ),
        (
            ["http://user:s3cret@1.1.1.1/"],
            4,
            "the URL may not be dialled, by rule egress/userinfo: "
            "the URL has a user name or password in it; send credentials in a header\n",
        ),
        (
            ["http://1.1.1.1:8443/", "--reason", "proxy"],
            4,
            "http://1.1.1.1:8443 may not be dialled, by rule egress/port: "
            "the port is neither 80 nor 443, and no rule allows it\n  1.1.1.1  public\n",
        ),
        (
            ["http://127.0.0.1:9000/mcp", "--reason", "dial", "--server", "local"],
            0,
            "http://127.0.0.1:9000 may be dialled, by rule egress/configured\n"
            "  127.0.0.1  loopback\n",
        ),
        (
            ["http://127.0.0.1:9001/mcp", "--reason", "dial", "--server", "local"],
            4,
            "http://127.0.0.1:9001 may not be dialled, by rule op/not-there: moved\n"
            "  127.0.0.1  loopback\n",
        ),
    ],
)
def test_check(
    arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["egress", "check", *arguments]) == code
    assert capsys.readouterr().out == told


def test_rules_in_audit_mode_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped one about plain http is about servers that are added: nobody is one here."""
    file = Path("rules.yaml")
    file.write_text(
        RULES.replace("effect: deny", "effect: deny\n    mode: audit").replace(
            'server.name == "local" && url.port == 9001', "url.port == 9001"
        )
    )
    assert main(["egress", "check", "http://1.1.1.1:9001/"]) == 0
    assert "were every rule enforced: deny, by rule op/not-there" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["egress", "check", "https://[fd00::1]:8443/a", "--json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert (told["decision"], told["rule"], told["mode"]) == ("deny", "egress/private", "enforce")
    assert told["url"] == {"scheme": "https", "host": "fd00::1", "port": 8443, "path": "/a"}
    assert told["addresses"] == [{"ip": "fd00::1", "class": "private"}]
    assert told["verdict"] == {"ok": False, "why": "private", "class": "private"}
    assert len(told["revision"]) == 64


def test_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["egress", "check", "--cases", str(HERE / "cases.jsonl")]) == 4
    *wrong, last = capsys.readouterr().out.splitlines()
    # The operator's rule allows what it says, and nothing else.
    private = {
        case["id"]
        for case in CASES
        if case["verdict"] == "deny"
        and (
            case["url"].startswith(("http://10.", "https://10."))
            or any(each.startswith("10.") for found in case["dns"].values() for each in found)
            or "http://10.0.0.1/" in case.get("chain", ())
        )
    }
    told = {line.split(": ")[1].split(" ")[0] for line in wrong}
    assert told
    assert told <= private
    assert all("expected deny, decided allow by rule op/office" in line for line in wrong)
    assert last == f"258 cases, {len(wrong)} mismatches"


def test_cases_alone(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "sidecar.yaml").write_text("name: plain\n")
    arguments = ["egress", "check", "--cases", str(HERE / "cases.jsonl")]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "258 cases, 0 mismatches\n"
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"cases": 258, "mismatches": []}


def test_mismatches_of_every_kind(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "my.jsonl").write_text(
        '{"id": "a", "url": "https://x.example/", "dns": {"x.example": ["1.1.1.1"]},'
        ' "verdict": "deny"}\n\n'
        '{"id": "b", "url": "https://x.example/", "dns": {"x.example": ["1.1.1.1", "1.0.0.1"]},'
        ' "verdict": "allow", "must_dial": ["1.1.1.1"]}\n'
        '{"id": "c", "url": "https://x.example/", "dns": {"x.example": ["1.1.1.1"]},'
        ' "verdict": "allow", "not_equal": "x.example", "extra": 1}\n'
        '{"id": "d\\u001b[2J", "url": "http://127.1/", "verdict": "allow"}\n'
    )
    assert main(["egress", "check", "--cases", "my.jsonl"]) == 4
    assert capsys.readouterr().out.splitlines() == [
        "my.jsonl:1: a https://x.example/: expected deny, decided allow by rule egress/public",
        "my.jsonl:3: b https://x.example/: may dial 1.1.1.1, 1.0.0.1, not 1.1.1.1",
        "my.jsonl:4: c https://x.example/: the host was taken for x.example",
        "my.jsonl:5: d\\u001b[2J http://127.1/: expected allow, decided deny by rule egress/ipv4",
        "4 cases, 4 mismatches",
    ]


def test_cases_that_test_nothing_are_told_all_at_once(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """A name that has no address is denied, so that a misspelled ``dns`` would pass."""
    (folder / "my.jsonl").write_text(
        '{"url": "https://x.example/", "dnss": {"x.example": ["1.1.1.1"]}, "verdict": "deny"}\n'
        '{"url": "https://x.example/", "dns": {"x.example": ["1.1.1"]}, "verdict": "deny"}\n'
        '{"url": "https://x.example/", "dns_Second": {}, "chains": [], "verdict": "deny"}\n'
        '{"url": "http://10.0.0.1/", "verdict": "allow", "must_dial": ["here"]}\n'
        '{"url": "http://10.0.0.1/", "verdict": "allow", "note": "is for people", "owner": ""}\n'
        "nothing\n"
    )
    assert main(["egress", "check", "--cases", "my.jsonl"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    first, second, third, fourth, last = told.err.splitlines()
    assert first == 'my.jsonl:1: unknown key "dnss"; did you mean "dns"?'
    assert second == 'my.jsonl:2: "1.1.1" is not an address'
    assert third.startswith('my.jsonl:3: unknown key "')
    assert fourth == 'my.jsonl:4: "here" is not an address'
    assert last.startswith("my.jsonl:6: ")
    (folder / "my.jsonl").write_text("\n")
    assert main(["egress", "check", "--cases", "my.jsonl"]) == 2
    assert capsys.readouterr().err == "my.jsonl: has no case in it\n"


def test_one_is_counted_as_one(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "my.jsonl").write_text('{"url": "http://192.168.0.1/", "verdict": "allow"}\n')
    assert main(["egress", "check", "--cases", "my.jsonl"]) == 4
    assert capsys.readouterr().out.endswith("\n1 case, 1 mismatch\n")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "give a URL, or --cases FILE"),
        (["http://x/", "--cases", "x"], 2, "give a URL, or --cases FILE"),
        (["--cases", "none.jsonl"], 2, "none.jsonl: No such file or directory"),
        (["--cases", "rules.yaml"], 2, "rules.yaml:2: "),
        (["http://x/", "--server", "none"], 2, "no such server; there are: local"),
    ],
)
def test_usage(
    arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["egress", "check", *arguments]) == code
    assert told in capsys.readouterr().err


def test_policies_that_do_not_load(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.yaml").write_text(RULES.replace("server.name", "sever.name"))
    assert main(["egress", "check", "http://1.1.1.1/"]) == 3
    assert "rules.yaml:14:" in capsys.readouterr().err
