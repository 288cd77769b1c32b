"""An ACP agent that does what its prompt says: `SCRIPT [step, …] END`, without a model.

Run with a JSON object of habits as its only argument (see ``HABITS``). Needs nothing but Python.
A step is an object with one of these keys; each is a method ``do_…`` below:

    say, think, tool, plan, update       what an agent says; `update` is sent as it is
    ask                                  a permission; with `run`, a command for when it is allowed
    request                              any request to the client; with `wait: false` go on
    withdraw                             `$/cancel_request` for this id
    raw                                  a line of stdout as it is
    sleep, hang, deaf                    wait; `hang` until cancelled, `deaf` for ever
    blind                                read nothing more
    stop, error                          end the turn so; with `late`, steps for afterwards
    exit, kill                           end the process
    fork                                 leave a process behind; with `daemon`, in another session;
                                         with `orphan`, also of a shell that is gone
    stderr, flood, mode, mcp             `times`, `text`; `mcp` calls a tool of the first server

Without a script it says `echo: ` and the prompt. Everything that came is appended to the file
`log`, one JSON document a line.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

HABITS = {
    "protocol": 1,  # the version it answers with
    "mode": "auto",  # in which it starts; null: it has no modes
    "modes": ["default", "plan", "auto"],
    "options": False,  # modes as a configuration option in place of `modes`
    "confirm": "before",  # when it tells a mode that was set: before, after, never, wrong
    "load": True,
    "resume": True,
    "http": True,  # MCP over HTTP
    "auth": "",  # the login that it wants first
    "greet": 0.0,  # seconds before it answers initialize
    "mute": [],  # methods that it never answers
    "store": "",  # a file for its sessions
    "log": "",
    "title": "scripted",
    "version": "1.0.0",
    "opening": [],  # steps while a session is opened
    "spawn_at_start": False,
}
ALLOW = {"optionId": "yes", "name": "Yes", "kind": "allow_once"}
ALWAYS = {"optionId": "always", "name": "Always", "kind": "allow_always"}
REJECT = {"optionId": "no", "name": "No", "kind": "reject_once"}
SCRIPT = re.compile(r"SCRIPT (\[.*\]) END", re.S)


class TurnOver(Exception):
    """Ends the turn with this answer, then does these steps."""

    def __init__(self, answer, late=()):
        super().__init__("over")
        self.answer = answer
        self.late = late


class Scripted:
    def __init__(self, habits):
        self.habits = {**HABITS, **habits}
        self.inbox = queue.Queue()
        self.answers = {}
        self.later = []
        self.cancelled = False
        self.blind = False
        self.session = ""
        self.cwd = "."
        self.mode = self.habits["mode"]
        self.logged_in = not self.habits["auth"]
        self.servers = []
        self.next = 0
        log = self.habits["log"]
        self.log = Path(log).open("a") if log else None  # noqa: SIM115

    # ------------------------------------------------------------------------------- wire

    def read(self):
        for line in sys.stdin:
            self.inbox.put(json.loads(line))
            while self.blind:
                time.sleep(1)
        self.inbox.put(None)

    def out(self, message):
        text = message if isinstance(message, str) else json.dumps(message)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def update(self, update, **params):
        params = {"sessionId": self.session, "update": update, **params}
        self.out({"jsonrpc": "2.0", "method": "session/update", "params": params})

    def chunk(self, text, kind="agent_message_chunk", **more):
        content = {"type": "text", "text": text}
        self.update({"sessionUpdate": kind, "content": content, **more})

    def take(self, timeout=None):
        """One message from the client; false when none came in time."""
        try:
            message = self.inbox.get(timeout=timeout)
        except queue.Empty:
            return False
        if message is None:
            sys.exit(0)
        if self.log:
            self.log.write(json.dumps(message) + "\n")
            self.log.flush()
        if "method" not in message:
            self.answers[message["id"]] = message
        elif message["method"] == "session/cancel":
            self.cancelled = True
        elif "id" in message:
            self.later.append(message)
        return True

    def wait(self, until, seconds=None):
        end = None if seconds is None else time.monotonic() + seconds
        while not until():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return
            self.take(left)

    # ---------------------------------------------------------------------------- requests

    def run(self):
        threading.Thread(target=self.read, daemon=True).start()
        while True:
            self.wait(lambda: self.later)
            message = self.later.pop(0)
            if message["method"] in self.habits["mute"]:
                continue
            name = "on_" + message["method"].replace("session/", "")
            handler = getattr(self, name, None)
            if handler is None:
                error = {"code": -32601, "message": "no such method"}
                self.out({"jsonrpc": "2.0", "id": message["id"], "error": error})
                continue
            result = handler(message.get("params") or {}, message["id"])
            if result is not None:
                self.answer(message["id"], result)

    def answer(self, id_, result):
        key = "error" if "code" in result else "result"
        self.out({"jsonrpc": "2.0", "id": id_, key: result})

    def on_initialize(self, params, id_):
        time.sleep(self.habits["greet"])
        sessions = {"resume": {}} if self.habits["resume"] else {}
        return {
            "protocolVersion": self.habits["protocol"],
            "agentInfo": {"name": self.habits["title"], "version": self.habits["version"]},
            "agentCapabilities": {
                "loadSession": self.habits["load"],
                "mcpCapabilities": {"http": self.habits["http"], "sse": False},
                "sessionCapabilities": sessions,
            },
            "authMethods": [],
        }

    def on_authenticate(self, params, id_):
        if params.get("methodId") != self.habits["auth"]:
            return {"code": -32602, "message": "no such way to log in"}
        self.logged_in = True
        return {}

    def on_new(self, params, id_):
        if not self.logged_in:
            return {"code": -32000, "message": "Authentication required"}
        sessions = self.sessions()
        self.session = f"s-{os.getpid()}-{len(sessions)}"
        self.keep(sessions | {self.session: []})
        return {"sessionId": self.session, **self.open(params)}

    def on_resume(self, params, id_):
        return self.again(params, replay=False)

    def on_load(self, params, id_):
        return self.again(params, replay=True)

    def again(self, params, replay):
        sessions = self.sessions()
        if params["sessionId"] not in sessions:
            return {"code": -32002, "message": "Resource not found"}
        self.session = params["sessionId"]
        for text in sessions[self.session] if replay else ():
            self.chunk(text, "user_message_chunk")
            self.chunk(f"replayed: {text[:20]}", messageId="old")
        return self.open(params)

    def open(self, params):
        self.cwd = params["cwd"]
        self.servers = params["mcpServers"]
        for step in self.habits["opening"]:
            self.do(step)
        if self.mode is None:
            return {}
        if self.habits["options"]:
            return {"configOptions": [self.option()]}
        available = [{"id": mode, "name": mode} for mode in self.habits["modes"]]
        return {"modes": {"currentModeId": self.mode, "availableModes": available}}

    def option(self):
        values = [{"value": mode, "name": mode} for mode in self.habits["modes"]]
        return {
            "id": "mode",
            "name": "Mode",
            "category": "mode",
            "type": "select",
            "currentValue": self.mode,
            "options": values,
        }

    def on_set_mode(self, params, id_):
        return self.set(params["modeId"], id_)

    def on_set_config_option(self, params, id_):
        return self.set(params["value"], id_)

    def set(self, mode, id_):
        confirm = self.habits["confirm"]
        if mode not in self.habits["modes"]:
            return {"code": -32602, "message": "no such mode"}
        self.mode = mode if confirm != "wrong" else "auto"
        if confirm == "after":
            self.answer(id_, {})
            time.sleep(0.05)
        if confirm != "never":
            self.tell_mode()
        return None if confirm == "after" else {}

    def tell_mode(self):
        if self.habits["options"]:
            self.update({"sessionUpdate": "config_option_update", "configOptions": [self.option()]})
        else:
            self.update({"sessionUpdate": "current_mode_update", "currentModeId": self.mode})

    def on_prompt(self, params, id_):
        text = "".join(block.get("text", "") for block in params["prompt"])
        sessions = self.sessions()
        self.keep(sessions | {self.session: [*sessions.get(self.session, []), text]})
        found = SCRIPT.search(text)
        self.cancelled = False
        late = ()
        try:
            for step in json.loads(found[1]) if found else [{"say": f"echo: {text}"}]:
                self.do(step)
                if self.cancelled:
                    raise TurnOver({"stopReason": "cancelled"})
                self.wait(lambda: False, 0)
            answer = {"stopReason": "end_turn"}
        except TurnOver as over:
            answer, late = over.answer, over.late
        self.answer(id_, answer)
        for step in late:
            self.do(step)

    # -------------------------------------------------------------------------------- steps

    def do(self, step):
        for key in step:
            method = getattr(self, f"do_{key}", None)
            if method is not None:
                method(step[key], step)
                return
        raise SystemExit(f"no such step: {step}")

    def do_say(self, text, step):
        more = {"messageId": step["id"]} if "id" in step else {}
        for _ in range(step.get("times", 1)):
            self.chunk(text, **more)

    def do_think(self, text, step):
        self.chunk(text, "agent_thought_chunk")

    def do_tool(self, call, step):
        self.update({"sessionUpdate": step.get("as", "tool_call"), **call})

    def do_plan(self, entries, step):
        self.update({"sessionUpdate": "plan", "entries": entries})

    def do_update(self, update, step):
        self.update(update, **step.get("params", {}))

    def do_ask(self, call, step):
        id_ = step.get("id", self.next)
        self.next += 1
        options = step.get("options", [ALLOW, ALWAYS, REJECT])
        params = {"sessionId": self.session, "toolCall": call, "options": options}
        params.update(step.get("params", {}))
        method = "session/request_permission"
        self.out({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})
        if step.get("wait", True):
            self.wait(lambda: id_ in self.answers or (self.cancelled and step.get("obey")))
            outcome = self.answers.get(id_, {}).get("result", {}).get("outcome", {})
            allowed = outcome.get("optionId") == "yes"
            if allowed and "run" in step:
                done = subprocess.run(
                    step["run"],
                    shell=True,
                    check=False,
                    cwd=self.cwd,
                    capture_output=True,
                    text=True,
                )
                self.chunk(f"ran it: {done.stdout.strip() or done.returncode}")
            elif "run" in step:
                self.chunk(f"not run: {outcome.get('optionId', outcome.get('outcome'))}")
            if not allowed and "denied" in step:
                raise TurnOver({"stopReason": step["denied"]})

    def do_request(self, message, step):
        self.out({"jsonrpc": "2.0", **message})
        if step.get("wait", True):
            self.wait(lambda: message["id"] in self.answers)

    def do_withdraw(self, id_, step):
        params = {"requestId": id_}
        self.out({"jsonrpc": "2.0", "method": "$/cancel_request", "params": params})

    def do_raw(self, text, step):
        for _ in range(step.get("times", 1)):
            self.out(text)

    def do_sleep(self, seconds, step):
        self.wait(lambda: self.cancelled, seconds)

    def do_hang(self, value, step):
        self.wait(lambda: self.cancelled)

    def do_deaf(self, value, step):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.wait(lambda: False)

    def do_blind(self, value, step):
        self.blind = True

    def do_stop(self, reason, step):
        raise TurnOver({"stopReason": reason, **step.get("more", {})}, step.get("late", ()))

    def do_error(self, error, step):
        raise TurnOver(error)

    def do_exit(self, code, step):
        os._exit(code)

    def do_kill(self, number, step):
        os.kill(os.getpid(), number)

    def do_fork(self, file, step):
        """The pid is written to the file."""
        if step.get("orphan"):
            command = f"sleep 600 & echo $! > {file}"
            subprocess.run(["/bin/sh", "-c", command], check=True, start_new_session=True)
            return
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(600)"],
            start_new_session=step.get("daemon", False),
        )
        Path(file).write_text(str(child.pid))

    def do_stderr(self, text, step):
        sys.stderr.write(text * step.get("times", 1))
        sys.stderr.flush()

    def do_flood(self, count, step):
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text"}}
        update["content"]["text"] = step.get("text", "x")
        params = {"sessionId": self.session, "update": update}
        line = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}) + "\n"
        block = line * 200
        for _ in range(count // 200):
            sys.stdout.write(block)
        sys.stdout.flush()

    def do_mode(self, mode, step):
        self.mode = mode
        self.tell_mode()

    def do_write(self, path, step):
        Path(self.cwd, path).write_text(step.get("text", ""))

    def do_mcp(self, tool, step):
        """Call a tool of the first MCP server it was given, over HTTP, and say the answer."""
        server = self.servers[0]
        headers = {item["name"]: item["value"] for item in server.get("headers", [])}
        headers |= {"content-type": "application/json"}
        headers |= {"accept": "application/json, text/event-stream"}

        def post(message):
            data = json.dumps({"jsonrpc": "2.0", **message}).encode()
            request = urllib.request.Request(server["url"], data, headers)
            with urllib.request.urlopen(request, timeout=30) as response:
                if session := response.headers.get("mcp-session-id"):
                    headers["mcp-session-id"] = session
                return response.read().decode()

        hello = {"protocolVersion": "2025-11-25", "capabilities": {}}
        hello["clientInfo"] = {"name": "scripted", "version": "1"}
        post({"id": 1, "method": "initialize", "params": hello})
        post({"method": "notifications/initialized"})
        call = {"name": tool, "arguments": step.get("args", {})}
        self.chunk(post({"id": 2, "method": "tools/call", "params": call}))

    # ----------------------------------------------------------------------------- sessions

    def sessions(self):
        path = self.habits["store"]
        return json.loads(Path(path).read_text()) if path and Path(path).exists() else {}

    def keep(self, sessions):
        if self.habits["store"]:
            Path(self.habits["store"]).write_text(json.dumps(sessions))


if __name__ == "__main__":
    Scripted(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}).run()
