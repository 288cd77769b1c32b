"""Nothing that an agent writes into a repository makes our git run a program.

Each hostile setting is first shown to run its program under plain git: a trap that cannot spring
proves nothing.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import pty
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sidecar.harness.git import Git, GitError, plain_file
from sidecar.harness.git_checkout import Checkout, CheckoutError, Repository
from sidecar.harness.git_fetch import FetchError, fetch, pin_remote
from sidecar.harness.naming import WorkName
from sidecar.harness.works import Work, Works
from tests.harness.kit import ENV, commit, git, lines, repository, write

NAME = WorkName("claude", "c", "alice", "fix")


@dataclass(frozen=True)
class Trap:
    """``set`` lays it, ``spring`` is the plain git that falls into it."""

    name: str
    set: Callable[[Path, Path, str], None]
    spring: Callable[[Path, Path], None]


def run(directory: Path, *args: str) -> None:
    git(directory, *args, ok=False)


def script(path: Path, command: str) -> Path:
    write(path, f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    return path


def springs(tmp_path: Path) -> str:
    """A program that leaves the file ``fired``, whatever its arguments are."""
    return str(script(tmp_path / "spring", f"touch {tmp_path}/fired"))


def _hooks(directory: Path, command: str) -> None:
    for hook in (
        "post-checkout", "post-index-change", "reference-transaction", "pre-commit",
        "post-commit", "post-merge", "pre-auto-gc", "fsmonitor-watchman",
    ):  # fmt: skip
        script(directory / hook, command)


def hooks(repo: Path, tree: Path, command: str) -> None:
    _hooks(repo / ".git" / "hooks", command)


def hooks_path(repo: Path, tree: Path, command: str) -> None:
    _hooks(tree / "hk", command)
    git(tree, "config", "core.hooksPath", str(tree / "hk"))


def config(key: str, value: str = "{command}") -> Callable[[Path, Path, str], None]:
    def lay(repo: Path, tree: Path, command: str) -> None:
        git(tree, "config", key, value.format(command=command))

    return lay


def worktree_config(repo: Path, tree: Path, command: str) -> None:
    git(tree, "config", "extensions.worktreeConfig", "true")
    git(tree, "config", "--worktree", "core.fsmonitor", f"{command}; false")


def included(repo: Path, tree: Path, command: str) -> None:
    write(repo / "evil.config", f'[core]\n\tfsmonitor = "{command}; false"\n')
    git(tree, "config", "include.path", str(repo / "evil.config"))


AS_LONG = "danced"
"""As long as ``worked``: git reads, and filters, a file again whose size is still the same; of one
that grew it does so only when the index was written in the same moment."""


def filtered(repo: Path, tree: Path, command: str) -> None:
    git(tree, "config", "filter.x.clean", f"sh -c '{command}; cat'")
    git(tree, "config", "filter.x.smudge", f"sh -c '{command}; cat'")
    write(tree / ".gitattributes", "* filter=x\n")
    write(tree / "a.txt", lines({1: AS_LONG}))


def filtered_by_info(repo: Path, tree: Path, command: str) -> None:
    git(tree, "config", "filter.x.process", command)
    write(repo / ".git" / "info" / "attributes", "* filter=x\n")
    write(tree / "a.txt", lines({1: AS_LONG}))


def merge_driver(repo: Path, tree: Path, command: str) -> None:
    git(tree, "config", "merge.x.driver", f"{command}; false")
    write(repo / ".git" / "info" / "attributes", "* merge=x\n")


def text_conversion(repo: Path, tree: Path, command: str) -> None:
    git(tree, "config", "diff.x.textconv", command)
    write(repo / ".git" / "info" / "attributes", "* diff=x\n")


def signed_log(repo: Path, tree: Path, command: str) -> None:
    git(tree, "config", "gpg.program", command)
    git(tree, "config", "log.showSignature", "true")
    raw = git(tree, "cat-file", "commit", "HEAD")
    header, _, body = raw.partition("\n\n")
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----"
    write(repo / "signed", f"{header}\n{signature}\n\n{body}\n")
    signed = git(tree, "hash-object", "-t", "commit", "-w", str(repo / "signed"))
    git(tree, "reset", "--quiet", "--soft", signed)


def promisor(repo: Path, tree: Path, command: str) -> None:
    """A missing object is fetched from where the config says, with what it says."""
    git(tree, "config", "extensions.partialClone", "evil")
    git(tree, "config", "core.repositoryFormatVersion", "1")
    git(tree, "config", "remote.evil.promisor", "true")
    git(tree, "config", "remote.evil.url", f"ext::{command}")
    git(tree, "config", "protocol.ext.allow", "always")


def on_a_terminal(tree: Path, *args: str) -> None:
    """Run plain git as at a terminal, where it starts pagers."""
    ours, its = pty.openpty()
    try:
        subprocess.run(
            ["git", *args], cwd=tree, env={**ENV, "TERM": "xterm"}, check=False, timeout=60,
            stdin=its, stdout=its, stderr=its,
        )  # fmt: skip
    finally:
        os.close(its)
        os.close(ours)


def edited(repo: Path, tree: Path) -> None:
    env = {name: value for name, value in ENV.items() if name != "GIT_EDITOR"}
    subprocess.run(["git", "commit", "--amend"], cwd=tree, env=env, check=False, timeout=60)


def in_tree(*args: str) -> Callable[[Path, Path], None]:
    return lambda repo, tree: run(tree, *args)


STATUS = [
    Trap("hooks", hooks, in_tree("checkout", "HEAD")),
    Trap("core.hooksPath", hooks_path, in_tree("checkout", "HEAD")),
    Trap("core.fsmonitor", config("core.fsmonitor"), in_tree("status")),
    Trap("config.worktree", worktree_config, in_tree("status")),
    Trap("include.path", included, in_tree("status")),
    Trap("filter.clean", filtered, in_tree("status")),
    Trap("filter.process", filtered_by_info, in_tree("status")),
    Trap("merge.driver", merge_driver, in_tree("merge", "main")),
    Trap("diff.external", config("diff.external"), in_tree("diff", "HEAD~1")),
    Trap("diff.textconv", text_conversion, in_tree("diff", "HEAD~1")),
    Trap("gpg.program", signed_log, in_tree("log", "-1")),
    Trap("core.pager", config("core.pager"), lambda repo, tree: on_a_terminal(tree, "log")),
    Trap("core.editor", config("core.editor"), edited),
    Trap("alias", config("alias.st", "!{command}"), in_tree("st")),
    Trap("promisor remote", promisor, in_tree("cat-file", "-p", "1" * 40)),
]


async def test_a_repository_full_of_traps(tmp_path: Path) -> None:
    """All of them together, through everything that is ever done with a work."""
    repo, works, work = await _begun(tmp_path)
    fired = tmp_path / "fired"
    for trap in STATUS:
        if trap.name == "promisor remote":
            continue  # such a repository is refused
        trap.set(repo, work.path, springs(tmp_path))
    fired.unlink(missing_ok=True)

    state = await works.state(work.key)
    assert state.dirty
    assert not fired.exists()
    kept = (await works.sweep()).kept
    assert [one.reason for one in kept] == ["conflicts"]
    await works.close()

    again = Works(tmp_path / "worktrees", [Checkout("c", repo)])
    await again.open()
    async with again.use(NAME) as reopened:
        assert reopened.path == work.path
    async with again.use(WorkName("claude", "c", "alice", "second")) as second:
        assert (second.path / "a.txt").read_text() == lines({1: "meanwhile"})
    assert not fired.exists()
    await again.close()


async def _begun(tmp_path: Path) -> tuple[Path, Works, Work]:
    """A work with a commit that conflicts with what the base did meanwhile."""
    repo = repository(tmp_path / "repo")
    works = Works(tmp_path / "worktrees", [Checkout("c", repo)])
    await works.open()
    async with works.use(NAME) as work:
        pass
    write(work.path / "a.txt", lines({1: "worked"}))
    commit(work.path, "worked")
    write(repo / "a.txt", lines({1: "meanwhile"}))
    commit(repo, "meanwhile")
    return repo, works, work


@pytest.mark.parametrize("trap", STATUS, ids=lambda trap: trap.name)
async def test_traps(trap: Trap, tmp_path: Path) -> None:
    repo, works, work = await _begun(tmp_path)
    fired = tmp_path / "fired"
    trap.set(repo, work.path, springs(tmp_path))
    fired.unlink(missing_ok=True)
    await works.state(work.key)
    assert not fired.exists(), "state"
    await works.sweep(dry_run=True)
    await works.sweep()
    assert not fired.exists(), "sweep"
    async with works.use(NAME):
        pass
    async with works.use(WorkName("claude", "c", "alice", "second")):
        pass
    assert not fired.exists(), "create"
    await works.close()
    with contextlib.suppress(CheckoutError):  # a partial clone is refused
        again = Repository(Checkout("c", repo), tmp_path / "private")
        again.open()
        # Missing objects are not looked for elsewhere.
        assert again.commit("1" * 40) is None
    assert not fired.exists(), "open"

    trap.spring(repo, work.path)
    assert fired.exists(), "the trap does not work: plain git should have sprung it"


async def test_traps_while_a_work_is_removed(tmp_path: Path) -> None:
    repo, works, work = await _begun(tmp_path)
    git(repo, "reset", "--quiet", "--hard", "HEAD~1")
    git(repo, "merge", "--quiet", "--squash", work.branch)
    commit(repo, "squashed")
    fired = tmp_path / "fired"
    command = springs(tmp_path)
    hooks(repo, work.path, command)
    git(work.path, "config", "filter.x.clean", f"sh -c '{command}; cat'")
    write(repo / ".git" / "info" / "attributes", "* filter=x\n")
    git(work.path, "config", "core.fsmonitor", f"{command}; false")
    run(work.path, "status")
    assert fired.exists()
    fired.unlink()
    swept = await works.sweep()
    assert swept.removed == (work.path,)
    assert not fired.exists()
    await works.close()
    git(repo, "branch", "other")
    assert fired.exists()


# ---------------------------------------------------------------------------------------- fetch


FETCHED = [
    Trap(
        "ext transport",
        lambda repo, tree, command: (
            git(repo, "config", "protocol.ext.allow", "always"),
            git(repo, "config", "remote.origin.url", f"ext::{command}"),
        )[0] and None,
        lambda repo, tree: run(repo, "fetch"),
    ),
    Trap(
        "remote.uploadpack",
        lambda repo, tree, command: git(
            repo, "config", "remote.origin.uploadpack", f"{command}; git-upload-pack"
        ) and None,
        lambda repo, tree: run(repo, "fetch"),
    ),
    Trap(
        "url.insteadOf",
        lambda repo, tree, command: (
            git(repo, "config", "protocol.ext.allow", "always"),
            git(repo, "config", f"url.ext::{command} #.insteadOf", "/"),
        )[0] and None,
        lambda repo, tree: run(repo, "fetch"),
    ),
    Trap(
        "hooks",
        hooks,
        lambda repo, tree: run(repo, "fetch", "origin", "+main:refs/heads/new"),
    ),
    Trap(
        "core.alternateRefsCommand",
        lambda repo, tree, command: (
            git(repo, "config", "core.alternateRefsCommand", f"{command}; false"),
            write(repo / ".git/objects/info/alternates", str(tree / ".git/objects") + "\n"),
        )[0] and None,
        lambda repo, tree: run(repo, "fetch"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("trap", FETCHED, ids=lambda trap: trap.name)
def test_traps_while_fetching(trap: Trap, tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    other = repository(tmp_path / "other")
    git(tmp_path, "clone", "--quiet", str(origin), "repo")
    repo = tmp_path / "repo"
    opened = Repository(Checkout("c", repo, fetch=True), tmp_path / "private")
    opened.open()
    pin_remote(opened)
    write(origin / "new.txt", "new")
    wanted = commit(origin, "new")
    fired = tmp_path / "fired"
    trap.set(repo, other, springs(tmp_path))
    fired.unlink(missing_ok=True)
    try:
        fetch(opened, opened.base_ref())
    except FetchError:
        assert trap.name == "ext transport"
    else:
        assert git(repo, "rev-parse", "origin/main") == wanted
    assert not fired.exists()

    write(origin / "newer.txt", "newer")
    commit(origin, "newer")
    trap.spring(repo, other)
    assert fired.exists(), "the trap does not work: plain git should have sprung it"


class _Unauthorized(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def unauthorized() -> Iterator[str]:
    """The URL of a server that wants a password for everything."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Unauthorized) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/x"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("credential.helper", ""),
        ("core.askPass", ""),
        ("core.sshCommand", "ssh://127.0.0.1:1/x"),
        ("core.gitProxy", "git://127.0.0.1:1/x"),
        ("protocol.ext.allow", "ext::"),
    ],
)
def test_traps_on_the_way_to_a_remote(
    key: str, url: str, tmp_path: Path, unauthorized: str
) -> None:
    """Here the remote was never another one, so it is really asked for."""
    origin = repository(tmp_path / "origin")
    git(tmp_path, "clone", "--quiet", str(origin), "repo")
    repo = tmp_path / "repo"
    command = springs(tmp_path)
    ext = url == "ext::"
    git(repo, "config", key, "always" if ext else command)
    git(repo, "config", "remote.origin.url", url + command if ext else url or unauthorized)
    opened = Repository(Checkout("c", repo, fetch=True), tmp_path / "private")
    opened.open()
    pin_remote(opened)
    with pytest.raises(FetchError) as error:
        fetch(opened, opened.base_ref())
    assert (url or unauthorized) not in str(error.value)
    assert not (tmp_path / "fired").exists()
    run(repo, "fetch")
    assert (tmp_path / "fired").exists(), "plain git should have sprung it"


# --------------------------------------------------------------------------------- environment


def test_our_own_environment_does_not_reach_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository(tmp_path / "repo")
    git(repo, "status")  # its index knows the copied files again
    fired = tmp_path / "fired"
    evil = script(tmp_path / "evil", f"touch {fired}")
    evil_home = tmp_path / "home"
    write(evil_home / ".gitconfig", f"[core]\n\tfsmonitor = {evil}\n")
    write(evil_home / ".config" / "git" / "attributes", "* filter=x\n")
    for name, value in {
        "GIT_DIR": "/nowhere",
        "GIT_WORK_TREE": "/nowhere",
        "GIT_INDEX_FILE": "/nowhere",
        "GIT_OBJECT_DIRECTORY": "/nowhere",
        "GIT_COMMON_DIR": "/nowhere",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": str(evil),
        "GIT_CONFIG_PARAMETERS": f"'core.fsmonitor'='{evil}'",
        "GIT_EXTERNAL_DIFF": str(evil),
        "GIT_SSH_COMMAND": str(evil),
        "GIT_PROXY_COMMAND": str(evil),
        "GIT_ASKPASS": str(evil),
        "GIT_EXEC_PATH": str(tmp_path),
        "GIT_TRACE": str(tmp_path / "trace"),
        "GIT_TRACE2_EVENT": str(tmp_path / "trace2"),
        "GIT_NAMESPACE": "other",
        "HOME": str(evil_home),
        "XDG_CONFIG_HOME": str(evil_home / ".config"),
        "PATH": f".:relative:{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, value)
    script(tmp_path / "private" / "home" / "git", f"touch {fired}")
    opened = Repository(Checkout("c", repo), tmp_path / "private")
    opened.open()
    assert opened.base_ref() == "refs/heads/main"
    done = opened.git.run(
        "diff-files", "--name-only", worktree=repo, index=repo / ".git" / "index", inside=True
    )
    assert done.text == ""
    assert not fired.exists()
    assert not list(tmp_path.glob("trace*"))


def test_only_our_config_is_read(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    git(repo, "config", "evil.key", "value")
    opened = Repository(Checkout("c", repo), tmp_path / "private")
    opened.open()
    listed = opened.git.run("config", "--list", "--show-origin", "--show-scope").text
    assert "evil" not in listed
    assert {line.split("\t")[1] for line in listed.splitlines()} == {
        f"file:{tmp_path}/private/git/config"
    }


@pytest.mark.parametrize("name", ["config", "config.worktree", "hooks", "info", "commondir"])
def test_our_own_directory_is_looked_at(name: str, tmp_path: Path) -> None:
    """A process of our user can write it; git does not run on it then."""
    opened = Repository(Checkout("c", repository(tmp_path / "repo")), tmp_path / "private")
    opened.open()
    path = tmp_path / "private" / "git" / name
    write(path, (path.read_text() if path.exists() else "") + f"[core]\n\tfsmonitor = {tmp_path}\n")
    with pytest.raises(GitError, match="was changed; start the sidecar again"):
        opened.base_ref()
    opened.open()
    assert opened.base_ref() == "refs/heads/main"


# -------------------------------------------------------------------------------------- bounds


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], Git]:
    """A git that is a script of ours."""

    def make(command: str) -> Git:
        (tmp_path / "home").mkdir(exist_ok=True)
        return Git(tmp_path, tmp_path / "home", str(script(tmp_path / "git", command)))

    return make


def test_a_git_that_does_not_end(fake: Callable[[str], Git], tmp_path: Path) -> None:
    slow = fake(f"sleep 60 & echo $! > {tmp_path}/pid; wait")
    began = time.monotonic()
    with pytest.raises(GitError, match=r"git status: took longer than 0\.3 s"):
        slow.run("status", timeout=0.3)
    assert time.monotonic() - began < 25
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
                time.sleep(0.02)
                continue
        return
    pytest.fail("its helper lives on")


def test_a_git_that_closes_its_output_and_goes_on(fake: Callable[[str], Git]) -> None:
    with pytest.raises(GitError, match="took longer than"):
        fake("exec >&- 2>&-; sleep 60").run("status", timeout=0.3)


def test_a_git_that_says_too_much(fake: Callable[[str], Git]) -> None:
    with pytest.raises(GitError, match="wrote more than 1000 bytes"):
        fake("yes").run("log", limit=1000)


def test_a_git_that_complains_too_much(fake: Callable[[str], Git]) -> None:
    with pytest.raises(GitError) as error:
        fake("head -c 1000000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 9").run("log")
    assert error.value.code == 9
    assert error.value.why.endswith("xend")
    assert len(error.value.why) <= 8192


def test_a_git_that_does_not_read(fake: Callable[[str], Git]) -> None:
    assert fake("exit 0").run("hash-object", stdin=b"x" * 1_000_000).out == b""


def test_input_of_any_size_comes_back(fake: Callable[[str], Git]) -> None:
    data = os.urandom(1_000_000)
    assert fake("cat").run("x", stdin=data).out == data


def test_no_git() -> None:
    with pytest.raises(GitError, match="could not be started"):
        Git(Path("/"), Path("/"), "/nowhere/git").run("status")


@pytest.mark.parametrize("where", ["refs/heads/pipe", "packed-refs", "shallow"])
def test_a_pipe_in_the_repository_does_not_hang_for_ever(where: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    opened = Repository(Checkout("c", repo), tmp_path / "private")
    opened.open()
    os.mkfifo(repo / ".git" / where)
    began = time.monotonic()
    with contextlib.suppress(GitError):
        opened.git.run("for-each-ref", timeout=0.5)
    assert time.monotonic() - began < 25


@pytest.mark.parametrize("name", ["config", "commondir", "HEAD"])
def test_pipes_and_links_where_we_read_files(name: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    path = repo / ".git" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    opened = Repository(Checkout("c", repo), tmp_path / "private")
    with pytest.raises(CheckoutError, match="is not a regular file"):
        opened.open()


def test_plain_files(tmp_path: Path) -> None:
    write(tmp_path / "file", "x" * 10)
    (tmp_path / "link").symlink_to("file")
    assert plain_file(tmp_path / "file") == b"x" * 10
    assert plain_file(tmp_path / "none") is None
    assert plain_file(tmp_path / "file" / "below") is None
    for name, limit in (("link", 100), ("", 100), ("file", 9)):
        with pytest.raises(OSError):
            plain_file(tmp_path / name, limit)
