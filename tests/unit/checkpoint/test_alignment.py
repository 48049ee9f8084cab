"""Alignment against a model in which every channel is a list of numbered elements."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoint.alignment import Aligned, Aligner, Blocked, Stale
from penstock.model.elements import Barrier
from penstock.model.ids import ChannelId, CheckpointId

A, B, C = ChannelId(1), ChannelId(2), ChannelId(3)


def barrier(number: int) -> Barrier:
    return Barrier(CheckpointId(number))


def test_a_barrier_on_the_only_channel_is_aligned_at_once() -> None:
    aligner = Aligner([A])
    assert aligner.on_barrier(A, barrier(1)) == Aligned(barrier(1))
    assert aligner.blocked == set()


def test_channels_are_blocked_until_the_last_one_delivers() -> None:
    aligner = Aligner([A, B, C])
    assert aligner.on_barrier(A, barrier(1)) == Blocked(barrier(1))
    assert aligner.on_barrier(C, barrier(1)) == Blocked(barrier(1))
    assert aligner.blocked == {A, C}
    assert aligner.pending == 1
    assert aligner.on_barrier(B, barrier(1)) == Aligned(barrier(1))
    assert aligner.blocked == set()
    assert aligner.pending is None


def test_an_abort_opens_the_channels_and_the_barrier_is_forwarded_once() -> None:
    aligner = Aligner([A, B, C])
    aligner.on_barrier(A, barrier(1))
    assert aligner.abort(CheckpointId(1))
    assert aligner.blocked == set()
    assert aligner.on_barrier(B, barrier(1)) == Stale(barrier(1), forward=True)
    assert aligner.on_barrier(C, barrier(1)) == Stale(barrier(1), forward=False)


def test_an_abort_that_comes_before_the_barrier_is_remembered() -> None:
    aligner = Aligner([A, B])
    assert not aligner.abort(CheckpointId(1))
    assert aligner.on_barrier(A, barrier(1)) == Stale(barrier(1), forward=True)
    assert aligner.on_barrier(B, barrier(1)) == Stale(barrier(1), forward=False)


def test_an_abort_of_an_older_checkpoint_leaves_the_newer_one_alone() -> None:
    aligner = Aligner([A, B])
    aligner.on_barrier(A, barrier(2))
    assert not aligner.abort(CheckpointId(1))
    assert aligner.blocked == {A}


def test_a_newer_barrier_ends_the_older_alignment() -> None:
    aligner = Aligner([A, B])
    aligner.on_barrier(A, barrier(1))
    assert aligner.on_barrier(B, barrier(2)) == Blocked(barrier(2))
    assert aligner.blocked == {B}
    assert aligner.on_barrier(A, barrier(2)) == Aligned(barrier(2))


def test_an_older_barrier_does_not_disturb_a_newer_alignment() -> None:
    aligner = Aligner([A, B])
    aligner.on_barrier(A, barrier(2))
    assert aligner.on_barrier(B, barrier(1)) == Stale(barrier(1), forward=True)
    assert aligner.blocked == {A}


@pytest.mark.parametrize("channel", [A, C])
def test_reading_a_blocked_or_foreign_channel_is_an_error(channel: ChannelId) -> None:
    aligner = Aligner([A, B])
    aligner.on_barrier(A, barrier(1))
    with pytest.raises(ValueError, match=f"channel {channel}, which is"):
        aligner.on_barrier(channel, barrier(1))


def test_a_barrier_that_overtakes_opens_all_channels_and_is_not_awaited_again() -> None:
    aligner = Aligner([A, B, C])
    aligner.on_barrier(A, barrier(1))
    assert aligner.overtake(barrier(1)) == {B, C}
    assert aligner.blocked == set()
    assert aligner.pending is None
    assert aligner.overtake(barrier(1)) is None
    assert aligner.on_barrier(B, barrier(1)) == Stale(barrier(1), forward=False)
    assert aligner.on_barrier(B, barrier(2)) == Blocked(barrier(2))


def test_a_newer_barrier_overtakes_an_older_alignment() -> None:
    aligner = Aligner([A, B])
    aligner.on_barrier(A, barrier(1))
    assert aligner.overtake(barrier(2)) == {A, B}
    assert aligner.blocked == set()


def test_a_barrier_that_is_behind_overtakes_nothing() -> None:
    aligner = Aligner([A, B])
    aligner.abort(CheckpointId(1))
    assert aligner.overtake(barrier(1)) is None
    aligner.on_barrier(A, barrier(3))
    assert aligner.overtake(barrier(2)) is None
    assert aligner.blocked == {A}


def test_a_channel_of_a_loop_is_not_waited_for() -> None:
    aligner = Aligner([A], feedback=[B, C])
    assert aligner.on_barrier(A, barrier(1)) == Aligned(barrier(1), missing=frozenset({B, C}))
    assert aligner.on_barrier(C, barrier(2)) == Blocked(barrier(2))
    assert aligner.blocked == {C}, "it came round before our own was here"
    assert aligner.on_barrier(A, barrier(2)) == Aligned(barrier(2), missing=frozenset({B}))
    aligner.abort(CheckpointId(3))
    assert aligner.on_barrier(B, barrier(3)) == Stale(barrier(3), forward=False)
    assert aligner.on_barrier(A, barrier(3)) == Stale(barrier(3), forward=True), "only our own goes on"
    aligner.on_barrier(B, barrier(4))
    assert aligner.overtake(barrier(4)) == {A, C}


@settings(deadline=None)
@given(data=st.data())
def test_no_row_crosses_an_aligned_barrier_and_none_is_passed_on_twice(data: st.DataObject) -> None:
    """Barrier n is aligned exactly when row n of no channel was read, and row n - 1 of each was."""
    channel_count = data.draw(st.integers(1, 4))
    last = data.draw(st.integers(1, 5))
    channels = [ChannelId(number) for number in range(channel_count)]
    aligner = Aligner(channels)
    barriers_read = dict.fromkeys(channels, 0)
    passed: list[int] = []
    while True:
        readable = [c for c in channels if c not in aligner.blocked and barriers_read[c] < last]
        if not readable:
            break
        if data.draw(st.integers(0, 5)) == 5:
            aligner.abort(CheckpointId(data.draw(st.integers(1, max(barriers_read.values()) + 1))))
            continue
        channel = data.draw(st.sampled_from(readable))
        barriers_read[channel] += 1
        number = barriers_read[channel]
        match aligner.on_barrier(channel, barrier(number)):
            case Aligned(found):
                assert found.checkpoint == number
                assert set(barriers_read.values()) == {number}
                passed.append(number)
            case Blocked(found):
                assert found.checkpoint == number
                assert channel in aligner.blocked
            case Stale(found, forward):
                assert found.checkpoint == number
                assert channel not in aligner.blocked
                if forward:
                    passed.append(number)
    assert passed == sorted(set(passed)), "each barrier at most once, in order"
    assert not aligner.blocked, "the channels have delivered all: nobody waits"
    assert all(count == last for count in barriers_read.values())
