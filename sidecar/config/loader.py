"""Files to a :class:`~sidecar.config.types.Config`, or every fault of all of them at once."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sidecar.config import across, nodes, places, values, yamltext
from sidecar.config.egress import ProxyClient
from sidecar.config.faults import Fault, Faults
from sidecar.config.nodes import Node, Scalar, Stop
from sidecar.config.record import Got
from sidecar.config.runtime import Runtime
from sidecar.config.servers import Server
from sidecar.config.shapes import At, Bad, Context
from sidecar.config.table import ROOT, Admin, Agent, Approver, Auth, Root
from sidecar.config.types import AdminConfig, Config, Listen, SecretRef
from sidecar.ports.secrets import SecretError


def load(
    path: Path | None,
    *,
    mcp_configs: Sequence[Path] = (),
    environ: Mapping[str, str],
    listen: str | None = None,
    check_secrets: bool = True,
) -> Config:
    """See :func:`sidecar.config.load`."""
    faults = Faults()
    folder = _working_folder()
    file = path if path is None else folder / path
    base = folder if file is None else file.parent
    context = Context(str(path or "(defaults)"), base, environ, faults, check_secrets)
    root: Node | None = None
    if file is not None:
        root = read(file, context, yamltext.read)
    if root is None or (isinstance(root, Scalar) and root.value is None):
        root = nodes.Mapping(1, 1, {})
    got = ROOT.read(root, At(context))
    if isinstance(got, Bad):
        got = Got(nodes.Mapping(1, 1, {}), At(context), {})
    config = _assemble(got, file)
    named = set(config.servers) | across.names(got, Root.SERVERS.key)
    if mcp_configs:
        taken = named | across.names(got, Root.HARNESSES.key)
        config = _with_lists(config, mcp_configs, taken, context, folder)
        named |= config.servers.keys()
    if listen is not None:
        config = _override(config, listen, faults)
    _check(got, config, named, overridden=listen is not None)
    faults.raise_any()
    return config


def _working_folder() -> Path:
    """Where relative paths of the command line begin; the root when the folder was removed."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def read(
    file: Path, context: Context, parse: Callable[[str, yamltext.Tell], Node | None]
) -> Node | None:
    """The file's tree; ``None`` when it is empty or when nothing of it can be read."""
    faults = context.faults

    def tell(line: int, column: int, message: str) -> None:
        faults.add(Fault(context.file, line, column, "", message))

    try:
        # Not a device or a folder; a pipe is what `--config <(…)` gives.
        mode = file.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            tell(0, 0, "is not a file")
            return None
        with file.open("rb") as stream:
            data = stream.read(nodes.MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no path"
        tell(0, 0, f"cannot be read: {why}")
        return None
    if len(data) > nodes.MOST_BYTES:
        tell(0, 0, f"is larger than {nodes.MOST_BYTES >> 20} MiB")
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - before.rfind(b"\n")
        tell(before.count(b"\n") + 1, column, "is not UTF-8 text")
        return None
    try:
        return parse(text, tell)
    except Stop as stop:
        tell(stop.line, stop.column, stop.message)
        return None


def _assemble(got: Got, file: Path | None) -> Config:
    """The YAML file's part, with defaults for what had a fault."""
    environ = got.at.context.environ
    auth = got[Root.AUTH]
    return Config(
        name=got[Root.NAME],
        path=file,
        listen=got[Root.LISTEN],
        hosts=got[Root.HOSTS],
        health=got[Root.HEALTH],
        admin=got[Root.ADMIN] or AdminConfig(places.admin_socket(environ)),
        separator=got[Root.SEPARATOR],
        servers=dict(got[Root.SERVERS]),
        harnesses=dict(got[Root.HARNESSES]),
        checkouts=dict(got[Root.CHECKOUTS]),
        worktrees=got[Root.WORKTREES],
        sweep=got[Root.SWEEP],
        children_user=got[Root.CHILDREN].user,
        children_home=got[Root.CHILDREN].home,
        agents=dict(got[Root.AGENTS]),
        token=None if auth is None else auth[Auth.TOKEN_FILE],
        store=got[Root.STORE] or places.store(environ),
        policies=got[Root.POLICIES],
        policy=got[Root.POLICY],
        labels=got[Root.LABELS],
        store_key=got[Root.STORE_KEY],
        credentials=dict(got[Root.CREDENTIALS]),
        runtime_servers=got[Root.RUNTIME_SERVERS],
        reconcile=got[Root.RECONCILE],
        parking=got[Root.PARKING],
        telemetry=got[Root.TELEMETRY],
        audit=got[Root.AUDIT],
        log=got[Root.LOG],
        proxy_listen=got[Root.EGRESS].listen,
        proxy=got[Root.EGRESS].proxy,
        list_wait=got[Root.LIST_WAIT],
        retry=got[Root.RETRY],
        drain_grace=got[Root.DRAIN],
        limits=got[Root.LIMITS],
    )


def _with_lists(
    config: Config, files: Sequence[Path], taken: set[str], context: Context, folder: Path
) -> Config:
    """The configuration with the servers of all ``--mcp-config`` files."""
    from sidecar.config import mcpfiles

    added = mcpfiles.Added(taken=set(taken), separator=config.separator)
    for name in files:
        file = folder / name
        here = context.of(str(name), file.parent)
        mcpfiles.add(file, here, added, read)
    servers = {**config.servers, **added.servers}
    return dataclasses.replace(config, servers=servers, notices=tuple(added.notices))


def _override(config: Config, listen: str, faults: Faults) -> Config:
    """``--listen`` in place of the file's."""
    try:
        address = values.listen(listen)
    except ValueError as error:
        faults.add(Fault("--listen", 0, 0, "", str(error)))
        return config
    return dataclasses.replace(config, listen=address)


# --------------------------------------------------------------- checks across the whole file


def _check(got: Got, config: Config, named: set[str], *, overridden: bool) -> None:
    _check_separator(got, config)
    across.check_agents(got, config, named)
    across.check_harnesses(got, config, named, protected=_protected(got, config))
    _check_tokens(got, config)
    _check_open(got, config, overridden=overridden)
    _check_addresses(got, config, overridden=overridden)
    _check_egress(got, config)
    if config.runtime_servers.commands and values.shared(config.store):
        place = got.place(Root.RUNTIME_SERVERS)
        teller = across.teller(got.at.child("runtime_servers"), place, Runtime.COMMANDS.key)
        teller(
            "cannot be on with a store that others share: whoever writes to it could run "
            "programs here"
        )


def _check_separator(got: Got, config: Config) -> None:
    """No server's name holds the separator, or names could not be told apart."""
    for field, what in ((Root.SERVERS, "server"), (Root.HARNESSES, "harness")):
        place = got.node.entries.get(field.key, (None, None))[1]
        if not isinstance(place, nodes.Mapping):
            continue
        for name, key, _ in place:
            # The default separator cannot stand in a name that passed the check of names.
            if config.separator in name and config.separator != Config().separator:
                message = f'has the separator "{config.separator}" in it; rename the {what}'
                got.at.child(field.key).child(name).fault(key, message)


def _check_tokens(got: Got, config: Config) -> None:
    """A token names one principal; an agent's is not the operator's."""
    if not got.at.context.check_secrets:
        return
    secrets = got.at.context.secrets
    seen: dict[str, str] = {}

    def once(ref: SecretRef | None, whose: str, tell: Callable[[str], object]) -> None:
        if ref is None or ref == SecretRef():
            return
        try:
            first = seen.setdefault(secrets.read(ref), whose)
        except SecretError:
            return  # told where it was read
        if first != whose:
            tell(f"holds the same token as {first}; each needs its own")

    agents = got.place(Root.AGENTS)
    for name, agent in config.agents.items():
        at = got.at.child("agents").child(name)
        node = agents.entries[name][1] if isinstance(agents, nodes.Mapping) else agents
        once(agent.token, f"agents.{name}", across.teller(at, node, Agent.TOKEN_FILE.key))
    once(config.token, "auth", lambda message: None)
    admin = got.place(Root.ADMIN)
    teller = across.teller(got.at.child("admin"), admin, Admin.TOKEN_FILE.key)
    once(config.admin.token, "admin", teller)
    listed = admin.entries.get(Admin.APPROVERS.key) if isinstance(admin, nodes.Mapping) else None
    for name, approver in config.admin.approvers.items():
        at = got.at.child("admin").child(Admin.APPROVERS.key).child(name)
        inside = listed[1] if listed is not None else admin
        node = inside.entries[name][1] if isinstance(inside, nodes.Mapping) else inside
        teller = across.teller(at, node, Approver.TOKEN_FILE.key)
        once(approver.token, f"admin.approvers.{name}", teller)
    for name, token in config.proxy.clients.items():
        place = ("egress", "proxy", "clients", name, ProxyClient.TOKEN_FILE.key)
        once(token, f"egress.proxy.clients.{name}", across.at(got, *place))


def _check_egress(got: Got, config: Config) -> None:
    """Whoever is told to use the proxy needs one."""
    if config.proxy_listen is not None:
        return
    for name, server in config.servers.items():
        if server.egress == "proxy":
            tell = across.at(got, "servers", name, Server.EGRESS.key)
            tell("there is no proxy; add egress: {proxy: {}} at the root, or remove this")


def _protected(got: Got, config: Config) -> bool:
    """Whether a token is asked for, also where it has a fault."""
    auth = got[Root.AUTH]
    asked = config.token is not None or bool(config.agents) or got.has(Root.AGENTS)
    return asked or (auth is not None and auth.has(Auth.TOKEN_FILE))


def _check_open(got: Got, config: Config, *, overridden: bool) -> None:
    """Beyond this machine nobody gets in without a token."""
    if config.listen is None or values.is_local(config.listen) or _protected(got, config):
        return
    port = config.listen.port
    message = (
        f"{config.listen} can be reached from other machines, and no token is asked for: "
        f"listen on 127.0.0.1:{port}, or set auth.token_file or agents"
    )
    if overridden:
        got.at.context.faults.add(Fault("--listen", 0, 0, "", message))
    else:
        got.fault(Root.LISTEN, message)


def _check_addresses(got: Got, config: Config, *, overridden: bool) -> None:
    """Two listeners cannot have one address; port 0 is another one each time."""
    seen: dict[Listen, str] = {}
    listeners = (("listen", config.listen), ("health.listen", config.health))
    proxy = ("egress.proxy.listen", config.proxy_listen)
    for name, address in (*listeners, ("admin.listen", config.admin.listen), proxy):
        if address is None or (address.path is None and address.port == 0):
            continue
        first = seen.setdefault(address, name)
        if first != name:
            message = f"{address} is the address of {first} too; give each its own"
            across.at(got, *name.split("."))(message)
