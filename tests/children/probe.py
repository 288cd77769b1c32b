"""What a child of the sidecar can reach: ``python probe.py TARGETS`` tells it in JSON.

TARGETS is a JSON object: ``files`` to read, ``sockets`` to connect to, ``processes`` whose
secrets to read and to send signal 0 to. Every answer is ``ok`` or the name of the error.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

STATUS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")


def tried(what: Callable[[], object]) -> str:
    try:
        what()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok"


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as here:
        here.settimeout(5)
        here.connect(path)
        here.sendall(b"GET /v1/servers HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = here.recv(64)
        if b" 200 " not in answer:
            raise PermissionError(errno.EPERM, answer.decode("ascii", "replace"))


def read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(16)


def probe(targets: dict[str, Any]) -> dict[str, Any]:
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    found: dict[str, Any] = {name: lines[name].split() for name in STATUS}
    found["home"] = tried(lambda: os.listdir(os.environ["HOME"]))
    found["HOME"], found["USER"] = os.environ.get("HOME"), os.environ.get("USER")
    found["names"] = sorted(os.environ)
    found["group"] = os.getpgrp() == os.getsid(0)
    found["root"] = tried(lambda: os.setuid(0))
    for path in targets.get("files", ()):
        found[os.path.basename(path)] = tried(lambda path=path: read(path))  # type: ignore[misc]
    for path in targets.get("sockets", ()):
        found[os.path.basename(path)] = tried(lambda path=path: connect(path))  # type: ignore[misc]
    for name, pid in targets.get("processes", {}).items():
        for what in ("environ", "mem", "fd"):
            at = f"/proc/{pid}/{what}"
            act = os.listdir if what == "fd" else read
            found[f"{name} {what}"] = tried(lambda act=act, at=at: act(at))  # type: ignore[misc]
        found[f"{name} signal"] = tried(lambda pid=pid: os.kill(pid, 0))  # type: ignore[misc]
    return found


def serve() -> None:
    """An MCP server over stdio with the one tool ``probe``; needs nothing but Python."""
    schema = {"type": "object", "properties": {"targets": {"type": "string"}}}
    tool = {"name": "probe", "inputSchema": schema, "annotations": {"readOnlyHint": True}}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        params, answer = message.get("params") or {}, {"jsonrpc": "2.0", "id": message["id"]}
        match message["method"]:
            case "initialize":
                answer["result"] = {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "prober", "version": "1"},
                }
            case "tools/list":
                answer["result"] = {"tools": [tool]}
            case "tools/call":
                told = probe(json.loads(params["arguments"]["targets"]))
                answer["result"] = {"content": [{"type": "text", "text": json.dumps(told)}]}
            case "ping":
                answer["result"] = {}
            case _:
                answer["error"] = {"code": -32601, "message": "no such method"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(probe(json.loads(sys.argv[1]))))
    else:
        serve()
