"""Every expression is checked against the columns when the program is built."""

import inspect

import narwhals as nw
import polars as pl
import pytest

from penstock import col, lit, when
from penstock.api import expressions, places
from penstock.model.errors import UserError


def here(offset: int = 0) -> str:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return places.render(__file__, frame.f_back.f_lineno + offset)


def test_the_private_door_into_narwhals_gives_a_polars_expression():
    made = expressions.native((nw.col("a") > 1) & ~nw.col("b").is_null())
    assert isinstance(made, pl.Expr)
    frame = pl.DataFrame({"a": [1, 2, 3], "b": [1, None, 1]})
    assert frame.filter(made).rows() == [(3, 1)]


@pytest.mark.parametrize(
    "made",
    [
        nw.when(nw.col("a") > 1).then(nw.lit(1)).otherwise(nw.lit(0)).alias("x"),
        nw.when(nw.col("a") > 1).then(1).alias("x"),
        nw.max_horizontal("a", "b").alias("x"),
        nw.col("a").cast(nw.String).str.len_chars().alias("x"),
        pl.col("a").alias("x"),
    ],
)
def test_all_sorts_of_expressions_become_serialized_polars(made):
    resolved, types = expressions.resolve(
        [made], {}, pl.Schema({"a": pl.Int64, "b": pl.Int64}), what="select", where="here"
    )
    assert [expression.name for expression in resolved] == ["x"]
    assert types.names() == ["x"]
    frame = pl.DataFrame({"a": [1, 2], "b": [5, 6]})
    assert frame.select(expressions.deserialize(resolved[0])).columns == ["x"]


def test_an_unknown_column_is_named_with_place_columns_and_the_nearest_name(bids):
    with pytest.raises(UserError) as caught:
        bids.filter(col("prise") > 100)
    assert caught.value.where == here(-1)
    assert caught.value.code == "P020"
    assert 'there is no column "prise"' in caught.value.what
    assert "auction, bidder, price, channel, ts" in caught.value.what
    assert caught.value.fix == 'did you mean "price"?'


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (pl.col("channel") > 5, "cannot compare string with numeric type"),
        (col("price").str.to_lowercase(), "expected `String`"),
        (col("price").dt.year(), "`year` operation not supported"),
        (pl.when(pl.col("price") == "a").then(1), "cannot compare string with numeric type"),
    ],
)
def test_an_expression_that_does_not_fit_the_types_is_refused(bids, made, problem):
    with pytest.raises(UserError, match=problem) as caught:
        bids.with_columns(made.alias("made"))
    assert (caught.value.code, caught.value.where) == ("P020", here(-1))
    assert "price: Int64" in caught.value.fix


def test_functions_in_expressions_are_not_called_when_the_program_is_built(bids):
    def count(_batch):
        raise AssertionError("there are no rows yet")

    assert bids.with_columns(n=pl.col("price").map_batches(count, return_dtype=pl.Int64)).schema["n"] == pl.Int64()


@pytest.mark.parametrize("verb", ["select", "with_columns", "filter"])
def test_every_verb_with_expressions_names_the_nearest_column(bids, verb):
    with pytest.raises(UserError, match='did you mean "auction"') as caught:
        getattr(bids, verb)(pl.col("Auctoin") + 1)
    assert caught.value.what.startswith(verb)


def test_a_mistake_in_a_chain_is_reported_at_its_own_line(bids):
    with pytest.raises(UserError) as caught:
        (
            bids.filter(col("price") > 100)
            .select("auction", "price")
            .with_columns(euros=col("prices") * 0.9)
        )  # fmt: skip
    assert caught.value.where == here(-2)


def test_a_wrong_type_says_what_polars_says_and_the_types_there_are(bids):
    with pytest.raises(UserError, match="channel") as caught:
        bids.with_columns(bad=col("channel") + 1)
    assert "price: Int64" in (caught.value.fix or "")


def test_a_filter_must_be_boolean(bids):
    with pytest.raises(UserError, match=r"gives Int64.*not Boolean"):
        bids.filter(col("price") + 1)


def test_a_look_at_other_rows_is_refused_since_a_batch_is_not_the_stream(bids):
    for made in (col("price").sum(), pl.col("price").shift(1), col("price").mean().over("auction")):
        with pytest.raises(UserError, match="looks at other rows"):
            bids.with_columns(x=made)


def test_a_column_made_twice_is_refused(bids):
    with pytest.raises(UserError, match='column "price" is made twice'):
        bids.select("price", col("auction").alias("price"))


def test_a_selection_of_several_columns_becomes_one_expression_each(bids):
    assert bids.select(nw.all()).columns == bids.columns
    assert bids.select(pl.exclude("ts", "channel")).columns == ["auction", "bidder", "price"]
    doubled = bids.select(nw.col("price", "bidder") * 2)
    assert doubled.schema == {"price": pl.Int64, "bidder": pl.Int64}


def test_named_columns_take_plain_values_and_strings_are_columns_as_everywhere(bids):
    made = bids.with_columns(one=1, item="auction", text=lit("auction"), big=when(col("price") > 5).then(lit(1)))
    assert (made.schema["one"], made.schema["item"], made.schema["text"]) == (pl.Int32(), pl.Int64(), pl.String())
    assert made.columns[-4:] == ["one", "item", "text", "big"]


def test_a_text_that_is_no_column_says_how_texts_are_written(bids):
    with pytest.raises(UserError, match=r'(?s)no column "mobile".*lit\("mobile"\)'):
        bids.with_columns(channel="mobile")


def test_an_operator_option_given_as_an_expression_is_a_column(bids):
    made = bids.select("auction", name=col("channel"), uid="renamed")
    assert made.columns == ["auction", "name"]


def test_a_select_of_plain_values_alone_still_gives_one_per_row(flow, bids, table):
    bids.select(one=lit(1)).write(table())
    select = flow.plan().vertices[0].chain[1].operator.spec
    frame = pl.DataFrame({"auction": [1, 2, 3]})
    assert frame.select(expressions.deserialize(select.expressions[0])).height == 3


def test_expressions_read_like_they_were_written():
    assert expressions.text((pl.col("a") > 1) & (pl.col("b") * 2 < 100)) == "(a > 1) & ((b * 2) < 100)"
    assert expressions.text(pl.col("line").str.to_lowercase()) == "line.str.to_lowercase()"
