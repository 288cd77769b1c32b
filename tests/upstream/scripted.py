"""A stdio server that does what its arguments say. The standard library alone, to start fast.

``scripted.py ERA [TRICK ...]``: ERA is legacy, modern or both (the first request decides).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

ERA, TRICKS = sys.argv[1], sys.argv[2:]
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
lock = threading.Lock()
state: dict = {"era": None, "calls": 0, "initialized": False, "listen": None, "extra": 0}
seen: list = []


def trick(name: str) -> str | None:
    for one in TRICKS:
        if one == name or one.startswith(name + "="):
            return one.partition("=")[2]
    return None


def write(data: bytes) -> None:
    with lock:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def send(message: object) -> None:
    write(json.dumps(message).encode() + b"\n")


def answer(id: object, result: object) -> None:
    send({"jsonrpc": "2.0", "id": id, "result": result})


def fail(id: object, code: int, text: str, data: object = None) -> None:
    send({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text, "data": data}})


def notify(method: str, params: object) -> None:
    send({"jsonrpc": "2.0", "method": method, "params": params})


def tools() -> list:
    found = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "pid")]
    found += [{"name": f"extra{n}", "inputSchema": {}} for n in range(state["extra"])]
    return found


def call(id: object, params: dict) -> None:
    name, args = params["name"], params.get("arguments") or {}
    token = (params.get("_meta") or {}).get("progressToken")
    text = ""
    if name == "echo":
        text = args.get("message", "")
    elif name == "pid":
        text = str(os.getpid())
    elif name == "count":
        state["calls"] += 1
        text = str(state["calls"])
    elif name == "params":
        text = json.dumps(params)
    elif name == "seen":
        text = json.dumps(seen)
    elif name == "env":
        text = json.dumps(dict(os.environ))
    elif name == "sleep":
        time.sleep(args["seconds"])
    elif name == "progress":
        for n in range(args["n"]):
            notify("notifications/progress", {"progressToken": token, "progress": n, "x": None})
    elif name == "log":
        notify("notifications/message", {"level": "error", "data": "hello"})
    elif name == "garbage":
        write(b'Starting up!\n\xff\xfe\n[1,2]\n{}\n"x"\n')
        send({"jsonrpc": "2.0", "id": 987654, "result": {}})
        send({"jsonrpc": "2.0", "id": "x", "result": {}})
        send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}})
        send({"jsonrpc": "2.0", "method": "notifications/odd"})
    elif name == "garbled":
        write(args["line"].replace("ID", str(id)).encode() + b"\n")
        return
    elif name == "big":
        answer(id, {"content": [], "x": "y" * args["size"]})
        return
    elif name == "big last":
        body = json.dumps("y" * args["size"])
        write(b'{"result":{"x":%s},"jsonrpc":"2.0","id":%d}\n' % (body.encode(), id))
        return
    elif name == "ask":
        for n, method in ((1, "roots/list"), ("p", "ping"), (3, "sampling/createMessage")):
            send({"jsonrpc": "2.0", "id": n, "method": method})
        time.sleep(0.2)
        text = json.dumps([message for message in seen if "method" not in message])
    elif name == "exit":
        os._exit(3)
    elif name == "grow":
        state["extra"] += 1
        for _ in range(args.get("times", 1)):
            changed("tools")
    elif name == "update":
        updated(args["uri"])
    elif name == "text":
        answer(id, "text")
        return
    elif name == "error":
        fail(id, -32050, "no", {"why": None})
        return
    answer(id, {"content": [{"type": "text", "text": text}]})


def changed(what: str) -> None:
    if state["era"] == "legacy":
        notify(f"notifications/{what}/list_changed", {})
    elif state["listen"] is not None:
        notify(
            f"notifications/{what}/list_changed",
            {"_meta": {META + "subscriptionId": state["listen"]}},
        )


def updated(uri: str) -> None:
    params: dict = {"uri": uri}
    if state["listen"] is not None:
        params["_meta"] = {META + "subscriptionId": state["listen"]}
    notify("notifications/resources/updated", params)


CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True},
    "logging": {},
}


def handle(message: dict) -> None:
    id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if id is None or method is None:
        if method == "notifications/initialized":
            state["initialized"] = True
        return
    modern = META + "protocolVersion" in (params.get("_meta") or {})
    if modern:
        if trick("exit on discover") is not None and method == "server/discover":
            os._exit(1)
        if trick("silent on discover") is not None:
            if trick("confused") is not None:
                state["confused"] = True
            return
        if ERA == "legacy":
            code = int(trick("discover code") or -32601)
            return fail(id, code, "Method not found")
        if state["era"] == "legacy":
            return fail(id, -32600, "wrong era")
        state["era"] = "modern"
    elif state["era"] == "modern" or ERA == "modern":
        return fail(id, -32022, "unsupported", {"supported": [MODERN]})
    if state.get("confused"):
        return None
    if method == "initialize":
        state["era"] = "legacy"
        offer = {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES}
        return answer(id, {**offer, "serverInfo": {"name": "s", "version": "1"}})
    if method == "server/discover":
        return answer(id, {"supportedVersions": [MODERN], "capabilities": CAPABILITIES})
    if state["era"] == "legacy" and not state["initialized"]:
        return fail(id, -32602, "Received request before initialization was complete")
    if method == "tools/list":
        return answer(id, {"tools": tools()})
    if method in ("resources/list", "resources/templates/list"):
        return answer(
            id, {(method.split("/")[-2] == "templates" and "resourceTemplates") or "resources": []}
        )
    if method == "subscriptions/listen":
        state["listen"] = id
        return notify(
            "notifications/subscriptions/acknowledged",
            {"_meta": {META + "subscriptionId": id}, "notifications": params["notifications"]},
        )
    if method == "tools/call":
        threading.Thread(target=call, args=(id, params), daemon=True).start()
        return None
    if method in ("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
        return answer(id, {})
    return fail(id, -32601, "Method not found")


if trick("ignore sigterm") is not None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True
    )
if (delay := trick("slow start")) is not None:
    time.sleep(float(delay))
if trick("exit at once") is not None:
    sys.exit(7)
if trick("chatty") is not None:
    write(b"Welcome to my server!\n")
if (marks := trick("marks")) is not None:
    with open(marks, "a") as file:
        file.write(f"{os.getpid()}\n")
for line in sys.stdin.buffer:
    message = json.loads(line)
    seen.append(message)
    handle(message)
if trick("ignore sigterm") is not None:
    time.sleep(600)
