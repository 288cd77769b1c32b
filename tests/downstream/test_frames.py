"""What a slow reader loses, and what it never does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.downstream.frames import MOST_BYTES, MOST_FRAMES, Frames, Weight, weight_of


def test_in_order() -> None:
    frames = Frames()
    for frame in (b"a", b"b", b"c"):
        frames.push(frame, Weight.PROGRESS)
    assert frames.pop() == b"a"
    assert frames.take() == [b"b", b"c"]
    assert (len(frames), frames.size, frames.take()) == (0, 0, [])


def test_the_oldest_progress_goes_first_then_notices_never_answers() -> None:
    frames = Frames()
    frames.push(b"answer", Weight.ANSWER)
    frames.push(b"notice", Weight.NOTICE)
    for i in range(MOST_FRAMES):
        frames.push(b"%d" % i, Weight.PROGRESS)
    kept = frames.take()
    assert kept == [b"answer", b"notice", *(b"%d" % i for i in range(2, MOST_FRAMES))]
    assert frames.dropped == 2
    for i in range(MOST_FRAMES + 5):
        frames.push(b"%d" % i, Weight.NOTICE if i < 10 else Weight.ANSWER)
    kept = frames.take()
    assert kept == [b"%d" % i for i in range(5, MOST_FRAMES + 5)]
    for i in range(MOST_FRAMES + 5):
        frames.push(b"%d" % i, Weight.ANSWER)
    assert len(frames.take()) == MOST_FRAMES + 5


def test_a_frame_over_the_bound_is_kept_when_it_is_alone() -> None:
    frames = Frames()
    frames.push(b"small", Weight.PROGRESS)
    frames.push(b"x" * (MOST_BYTES + 1), Weight.PROGRESS)
    assert [len(frame) for frame in frames.take()] == [MOST_BYTES + 1]


def test_weights() -> None:
    assert weight_of("notifications/progress") is Weight.PROGRESS
    assert weight_of("notifications/message") is Weight.NOTICE


@given(st.lists(st.tuples(st.sampled_from(Weight), st.integers(0, MOST_BYTES // 3)), max_size=600))
def test_bounds_hold_and_answers_stay(pushed: list[tuple[Weight, int]]) -> None:
    frames = Frames()
    whole = bytes(MOST_BYTES // 3)
    for weight, size in pushed:
        frames.push(whole[:size], weight)
        others = [frame for kind, frame in frames._frames if kind is not Weight.ANSWER]
        answers = [frame for kind, frame in frames._frames if kind is Weight.ANSWER]
        assert len(others) <= MOST_FRAMES
        if len(others) > 1 or (others and answers):
            assert sum(map(len, others)) <= MOST_BYTES
        assert frames.size == sum(len(frame) for _, frame in frames._frames)
    sent = [size for weight, size in pushed if weight is Weight.ANSWER]
    assert [len(frame) for kind, frame in frames._frames if kind is Weight.ANSWER] == sent
