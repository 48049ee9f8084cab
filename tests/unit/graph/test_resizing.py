"""Key groups on their way from one parallelism to another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph import moves
from penstock.state.key_groups import group_range, owners


@given(maximum=st.integers(1, 300), data=st.data())
def test_moves_are_exact_do_not_overlap_and_lose_nothing(maximum: int, data: st.DataObject) -> None:
    before, after = (data.draw(st.integers(1, maximum)) for _ in range(2))
    held = {index: set(group_range(index, before, maximum)) for index in range(before)}
    moved = list(moves(owners(before, maximum), owners(after, maximum)))
    assert len({group for group, _, _ in moved}) == len(moved)
    for group, old, new in moved:
        assert old != new
        held[old].remove(group)
        held.setdefault(new, set()).add(group)
    assert {index: groups for index, groups in held.items() if groups} == {
        index: set(group_range(index, after, maximum)) for index in range(after)
    }


@pytest.mark.parametrize(("before", "after", "expected"), [(2, 4, 96), (4, 4, 0), (1, 2, 64), (4, 3, 65)])
def test_no_more_groups_move_than_have_another_owner(before: int, after: int, expected: int) -> None:
    assert sum(1 for _ in moves(owners(before, 128), owners(after, 128))) == expected
