"""Blocks, in memory and in RocksDB: what goes in comes out, and leaves when nobody can read it any more."""

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from penstock.state.blocks import Block, BlockHome, cut, cut_range
from penstock.state.key_groups import KEY_GROUP
from penstock.state.rocks import Database

MakeBlock = Callable[[pl.DataFrame], Block]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[BlockHome]:
    made = BlockHome(Database(tmp_path / "blocks", groups=range(16), budget=1 << 20))
    yield made
    made.close()


@pytest.fixture(params=["memory", "rocksdb"])
def make(request: pytest.FixtureRequest, home: BlockHome) -> MakeBlock:
    def made(frame: pl.DataFrame) -> Block:
        block = Block("panes", frame)
        if request.param == "rocksdb":
            block.put_away(home)
        assert block.in_memory == (request.param == "memory")
        return block

    return made


def table(*groups: int, text: str | None = "a") -> pl.DataFrame:
    return pl.DataFrame(
        {
            KEY_GROUP: pl.Series(groups, dtype=pl.UInt16),
            "text": pl.Series([text] * len(groups), dtype=pl.String),
            "list": [[group, None] for group in groups],
            "at": pl.Series(list(groups), dtype=pl.Datetime("us", "UTC")),
        }
    )


def test_a_block_reads_as_it_was_written(make: MakeBlock) -> None:
    for frame in (table(1), table(0, 0, 3, text=None), table(*range(16), text="long enough not to be inlined")):
        block = make(frame)
        assert_frame_equal(block.frame, frame)
        assert (block.state, block.rows) == ("panes", frame.height)
        assert block.bytes > 0


def test_a_slice_takes_its_own_rows_only(make: MakeBlock) -> None:
    block = make(table(*range(16))[4:6])
    assert_frame_equal(block.frame, table(4, 5))


def test_whoever_holds_a_block_can_read_it_and_then_it_is_removed(home: BlockHome) -> None:
    first, second = Block("panes", table(1)), Block("panes", table(1, 1))
    first.put_away(home)
    second.put_away(home)
    uploading = first
    del first
    Block("panes", table(2)).put_away(home)
    assert_frame_equal(uploading.frame, table(1))
    del uploading
    third = Block("panes", table(3))
    third.put_away(home)
    assert home.held == 2  # the second and the third; the first and the one in between are gone
    assert_frame_equal(second.frame, table(1, 1))


def test_blocks_are_numbered_apart(home: BlockHome) -> None:
    blocks = [Block("panes", table(1, text=str(number))) for number in range(300)]
    for block in blocks:
        block.put_away(home)
    assert [block.frame.item(0, "text") for block in blocks] == [str(number) for number in range(300)]


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 80))
def test_ranges_cover_the_groups_once_and_none_is_empty(first: int, groups: int, count: int) -> None:
    ranges = cut_range(range(first, first + groups), count)
    assert [group for each in ranges for group in each] == list(range(first, first + groups))
    assert len(ranges) == min(count, groups)
    assert all(len(each) > 0 for each in ranges)


@given(st.lists(st.integers(0, 15)), st.integers(1, 20))
def test_a_cut_gives_each_row_to_its_range_and_keeps_the_order(groups: list[int], count: int) -> None:
    frame = table(*sorted(groups)).with_row_index("number")
    ranges = cut_range(range(16), count)
    parts = cut(frame, ranges)
    assert_frame_equal(pl.concat(parts), frame)
    for part, each in zip(parts, ranges, strict=True):
        assert all(group in each for group in part[KEY_GROUP].to_list())
