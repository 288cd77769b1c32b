"""What is remembered of a work, and how much of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from sidecar.harness.naming import WorkName
from sidecar.harness.run_memory import Episode, Memories, Memory

NAME = WorkName("claude", "repo", "alice", "fix")


def memory(**rest: object) -> Memory:
    return Memory(name=NAME, claim="c", call="1", running=False, **rest)  # type: ignore[arg-type]


def test_it_comes_back_as_it_was_put(tmp_path: Path) -> None:
    memories = Memories(tmp_path)
    put = memory(session="s", answer="{}", episodes=(Episode("t", "m", "end_turn"),))
    assert memories.get(NAME.key) is None
    memories.put(put)
    assert memories.get(NAME.key) == put
    assert list(memories.all()) == [put]
    memories.handed_over(NAME.key, "another call")
    assert memories.get(NAME.key) == put
    memories.handed_over(NAME.key, "1")
    assert memories.get(NAME.key) == memory(session="s", episodes=put.episodes)
    memories.delete(NAME.key)
    memories.delete(NAME.key)
    assert list(memories.all()) == []
    assert list(tmp_path.iterdir()) == []


def test_an_answer_that_is_too_long_is_not_kept_and_the_rest_is(tmp_path: Path) -> None:
    memories = Memories(tmp_path)
    memories.put(memory(session="s", answer="x" * (9 << 20)))
    assert memories.get(NAME.key) == memory(session="s")


def test_what_happened_is_shortened_and_the_oldest_goes(tmp_path: Path) -> None:
    kept = memory()
    for number in range(8):
        kept = kept.with_episode(f"{number}" * 10_000, "\U0001f600" * 10_000, "end_turn")
    assert [episode.task[0] for episode in kept.episodes] == ["3", "4", "5", "6", "7"]
    assert all(len(e.task) == 4_000 and len(e.last_message) == 8_001 for e in kept.episodes)


def test_files_of_others_are_none_of_ours(tmp_path: Path) -> None:
    memories = Memories(tmp_path)
    memories.put(memory())
    other = tmp_path / "claude" / "repo" / "bob"
    other.mkdir(parents=True)
    (other / "fix.json").write_bytes((tmp_path / "claude/repo/alice/fix.json").read_bytes())
    (other / "broken.json").write_text("{")
    assert list(memories.all()) == [memory()]


def test_a_run_that_begins_is_not_forgotten_for_the_answer_before(tmp_path: Path) -> None:
    memories = Memories(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        for number in range(100):
            memories.put(memory(answer="{}"))
            begun = msgspec.structs.replace(memory(), call=f"next {number}", running=True)
            put = threads.submit(memories.put, begun)
            handed = threads.submit(memories.handed_over, NAME.key, "1")
            put.result()
            handed.result()
            assert memories.get(NAME.key) == begun
