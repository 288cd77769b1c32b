"""The policy in force: edits are taken over, faulty ones are not, in every way files change."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sidecar.config.types import PolicyConfig
from sidecar.events import Bus, PolicyLoaded
from sidecar.model import Phase
from sidecar.policy import PolicyErrors
from sidecar.policy.guard import Guarded
from sidecar.policy.holder import PolicyHolder
from tests.policy.kit import Folder, decide, policy, rule

NONE = PolicyConfig(shipped=())
DENY = policy(rule("r", "deny", "tool.gated"))
ASK = policy(rule("r", "ask", "tool.gated"))
TEST = """\
apiVersion: sidecar/v1
kind: PolicyTest
input: {tool: {gated: true}}
tests:
  - {name: gated tools are denied, expect: {decision: deny}}
"""


class Held:
    """A holder that looks often, and what it swapped in."""

    def __init__(self, path: Path, config: PolicyConfig = NONE) -> None:
        bus = Bus()
        self.holder = PolicyHolder([path], config, interval=0.02, bus=bus)
        self.loads: list[tuple[str, bool]] = []
        bus.listen(PolicyLoaded, lambda event: self.loads.append((event.revision, event.faulty)))
        self.swapped: list[Guarded] = []
        self.holder.listen(self.swapped.append)

    def decides(self) -> str:
        return decide(self.holder.current).decision

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.01)


@pytest.fixture
async def held(folder: Folder) -> AsyncIterator[Held]:
    folder.write("p.yaml", DENY)
    made = Held(folder.path)
    await made.holder.start()
    yield made
    await made.holder.close()


async def test_start(held: Held) -> None:
    assert held.decides() == "deny"
    status = held.holder.status()
    assert status["revision"] == held.holder.current.revision
    assert status["engine"] == "cel"
    assert str(status["loaded_at"]).endswith("Z")
    assert "error" not in status
    assert held.swapped == [held.holder.current]


async def test_a_first_load_with_faults_raises(folder: Folder) -> None:
    folder.write("p.yaml", "nonsense: 1")
    holder = PolicyHolder([folder.path], NONE)
    with pytest.raises(PolicyErrors, match="unknown key"):
        await holder.start()
    with pytest.raises(RuntimeError):
        _ = holder.current
    await holder.close()


async def test_an_edited_file(held: Held, folder: Folder) -> None:
    before = held.holder.current
    folder.write("p.yaml", ASK)
    await held.until(lambda: held.decides() == "ask")
    assert held.holder.current.revision != before.revision
    # Who took the old one decides by it to the end.
    assert decide(before).decision == "deny"
    assert [each.revision for each in held.swapped] == [
        before.revision,
        held.holder.current.revision,
    ]


async def test_every_load_is_told(held: Held, folder: Folder) -> None:
    first = held.holder.current.revision
    folder.write("p.yaml", "nonsense: 1")
    await held.until(lambda: len(held.loads) == 2)
    folder.write("p.yaml", ASK)
    await held.until(lambda: len(held.loads) == 3)
    second = held.holder.current.revision
    assert held.loads == [(first, False), (first, True), (second, False)]


async def test_a_replaced_file(held: Held, folder: Folder) -> None:
    folder.write(".new", ASK)
    os.replace(folder.path / ".new", folder.path / "p.yaml")
    await held.until(lambda: held.decides() == "ask")


async def test_a_file_more_and_a_file_less(held: Held, folder: Folder) -> None:
    more = folder.write("q.yaml", policy(rule("r", "deny", "tool.changed"), name="q"))
    await held.until(lambda: len(held.swapped) == 2)
    assert decide(held.holder.current, tool={"gated": False, "changed": True}).rule == "q/r"
    more.unlink()
    await held.until(lambda: len(held.swapped) == 3)
    assert decide(held.holder.current, tool={"gated": False, "changed": True}).rule == "default"


async def test_the_links_of_a_config_map(folder: Folder) -> None:
    """What the kubelet does: a new folder, a new link, one rename, the old folder removed."""
    folder.write("..one/p.yaml", DENY)
    (folder.path / "..data").symlink_to("..one")
    (folder.path / "p.yaml").symlink_to("..data/p.yaml")
    held = Held(folder.path)
    await held.holder.start()
    try:
        for number, (text, said) in enumerate([(ASK, "ask"), (DENY, "deny"), (ASK, "ask")]):
            name = f"..two{number}"
            folder.write(f"{name}/p.yaml", text)
            old = os.readlink(folder.path / "..data")
            (folder.path / "..data_tmp").symlink_to(name)
            os.rename(folder.path / "..data_tmp", folder.path / "..data")
            shutil.rmtree(folder.path / old)
            await held.until(lambda said=said: held.decides() == said)
    finally:
        await held.holder.close()


async def test_a_bad_edit_changes_nothing_and_is_told(held: Held, folder: Folder) -> None:
    before = held.holder.current
    folder.write("p.yaml", ASK.replace("tool.gated", "tool.gatd"))
    await held.until(lambda: "error" in held.holder.status())
    assert held.holder.current is before
    error = held.holder.status()["error"]
    assert isinstance(error, dict)
    (told,) = error["faults"]
    assert told.endswith("p.yaml:9:12: p/r: there is no field gatd; did you mean gated?")
    assert held.holder.status()["revision"] == before.revision
    folder.write("p.yaml", ASK)
    await held.until(lambda: held.decides() == "ask")
    assert "error" not in held.holder.status()


async def test_a_bad_edit_that_is_taken_back(held: Held, folder: Folder) -> None:
    folder.write("p.yaml", "a: [")
    await held.until(lambda: "error" in held.holder.status())
    folder.write("p.yaml", DENY)
    await held.until(lambda: "error" not in held.holder.status())
    assert held.decides() == "deny"
    assert len(held.swapped) == 1


async def test_a_folder_that_is_gone(held: Held, folder: Folder) -> None:
    shutil.rmtree(folder.path)
    await held.until(lambda: "error" in held.holder.status())
    assert held.decides() == "deny"


async def test_a_test_that_fails_keeps_an_edit_out(held: Held, folder: Folder) -> None:
    folder.write("p_test.yaml", TEST)
    assert await held.holder.reload()
    folder.write("p.yaml", ASK)
    assert not await held.holder.reload()
    assert held.decides() == "deny"
    error = held.holder.status()["error"]
    assert isinstance(error, dict)
    (told,) = error["faults"]
    assert told.endswith(
        "p_test.yaml:5:5: p/r: test 'gated tools are denied': decision is ask (by p/r), "
        "expected deny"
    )
    folder.write("p_test.yaml", TEST.replace("decision: deny", "decision: ask"))
    assert await held.holder.reload()
    assert held.decides() == "ask"


async def test_a_broken_test_file_keeps_an_edit_out(held: Held, folder: Folder) -> None:
    folder.write("p_test.yaml", "kind: PolicyTest\n")
    assert not await held.holder.reload()
    assert held.decides() == "deny"


async def test_other_settings(held: Held, folder: Folder) -> None:
    other = folder.path / "other"
    folder.write("other/p.yaml", ASK)
    assert await held.holder.reconfigure([other], PolicyConfig(default="deny", shipped=()))
    assert held.decides() == "ask"
    assert decide(held.holder.current, tool={"gated": False}).decision == "deny"
    assert not await held.holder.reconfigure([folder.path / "none"], NONE)
    assert held.decides() == "ask"


async def test_reloads_at_once_end_with_the_last_edit(held: Held, folder: Folder) -> None:
    folder.write("p.yaml", ASK)
    assert await asyncio.gather(*(held.holder.reload() for _ in range(5))) == [True] * 5
    assert held.decides() == "ask"
    assert len(held.swapped) == 2


async def test_schemas_are_looked_at(folder: Folder) -> None:
    folder.write("p.yaml", policy(rule("r", "deny", 'tool.name == "up__w" && has(args.pth)')))
    schema = {"properties": {"path": {"type": "string"}}}
    holder = PolicyHolder([folder.path], NONE, schemas=lambda server, tool: schema)
    await holder.start()
    await holder.close()
    (warning,) = holder.status()["warnings"]  # type: ignore[misc]
    assert "did you mean path?" in warning


async def test_the_shipped_policies_are_in_force_by_themselves() -> None:
    holder = PolicyHolder([], PolicyConfig())
    await holder.start()
    await holder.close()
    assert decide(holder.current).rule == "gating/gated"
    assert decide(holder.current, Phase.RESULT).labels == ("outside",)
