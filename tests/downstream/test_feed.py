"""What a listener is told of a burst, and how much may wait for it."""

from __future__ import annotations

from sidecar.downstream.feed import APART, MOST_BYTES, MOST_OTHERS, MOST_UPDATES, SETTLE, Feed

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
UPDATED = "notifications/resources/updated"


def test_a_burst_is_one_notification() -> None:
    feed = Feed()
    for i in range(5):
        feed.offer(TOOLS, {}, 100.0 + i * 0.005)
    due = feed.due()
    assert due == 100.0 + SETTLE
    assert feed.take(100.0) == []
    assert feed.take(due) == [(TOOLS, {})]
    assert feed.due() is None
    assert feed.take(due + 10) == []


def test_a_burst_that_goes_on_is_two_and_the_last_change_is_never_lost() -> None:
    feed = Feed()
    now, taken = 100.0, []
    for _ in range(50):  # 50 changes in half a second, read as they fall due
        feed.offer(TOOLS, {}, now)
        taken += feed.take(now)
        now += 0.01
    assert len(taken) == 1
    due = feed.due()
    assert due is not None
    assert due >= 100.0 + SETTLE + APART
    assert feed.take(due) == [(TOOLS, {})]
    assert feed.due() is None


def test_a_change_much_later_is_told_soon() -> None:
    feed = Feed()
    feed.offer(TOOLS, {}, 0.0)
    feed.take(SETTLE)
    feed.offer(TOOLS, {}, 60.0)
    assert feed.due() == 60.0 + SETTLE


def test_lists_do_not_wait_for_each_other() -> None:
    feed = Feed()
    feed.offer(TOOLS, {}, 0.0)
    feed.take(SETTLE)
    feed.offer(TOOLS, {}, 0.1)
    feed.offer(PROMPTS, {}, 0.1)
    assert feed.take(0.1 + SETTLE) == [(PROMPTS, {})]


def test_updates_of_one_resource_are_told_once_and_different_ones_each() -> None:
    feed = Feed()
    feed.offer(UPDATED, {"uri": "a"}, 0.0)
    feed.offer(UPDATED, {"uri": "b"}, 0.0)
    feed.offer(UPDATED, {"uri": "a", "x": 1}, 0.0)
    assert feed.due() == 0.0
    assert feed.take(0.0) == [(UPDATED, {"uri": "a"}), (UPDATED, {"uri": "b"})]
    feed.offer(UPDATED, {"uri": "a"}, 0.1)
    assert feed.take(0.1) == [(UPDATED, {"uri": "a"})]


def test_a_reader_that_is_too_far_behind_is_marked() -> None:
    feed = Feed()
    for i in range(MOST_UPDATES):
        feed.offer(UPDATED, {"uri": str(i)}, 0.0)
    assert not feed.overflowed
    feed.offer(UPDATED, {"uri": "0"}, 0.0)
    assert not feed.overflowed
    feed.offer(UPDATED, {"uri": "one more"}, 0.0)
    assert feed.overflowed


def test_log_messages_drop_the_oldest() -> None:
    feed = Feed()
    for i in range(MOST_OTHERS + 5):
        feed.offer("notifications/message", {"data": i}, 0.0)
    taken = feed.take(0.0)
    assert [params["data"] for _, params in taken] == list(range(5, MOST_OTHERS + 5))
    assert not feed.overflowed


def test_large_messages_are_bounded_by_their_size() -> None:
    feed = Feed()
    for i in range(10):
        feed.offer("notifications/message", {"data": str(i) * (MOST_BYTES // 4)}, 0.0)
    assert [str(params["data"])[0] for _, params in feed.take(0.0)] == ["7", "8", "9"]
    feed.offer("notifications/message", {"data": "x" * MOST_BYTES}, 0.0)
    assert feed.take(0.0) == []
    for i in range(4):
        feed.offer(UPDATED, {"uri": str(i), "x": "x" * (MOST_BYTES // 4)}, 0.0)
    assert feed.overflowed
