"""Watermark strategies are checked against the columns when the program is built, at the user's own line."""

from datetime import timedelta

import polars as pl
import pytest

import penstock as ps
from penstock import col
from penstock.model import specs
from penstock.model.errors import UserError

EVENTS = pl.Schema(
    {"kind": pl.String, "ts": pl.Int64, "until": pl.Int64, "at": pl.Datetime("ms", "UTC"), "price": pl.Float64}
)


class Last(ps.WatermarkGenerator):
    columns = ("ts",)

    def on_batch(self, frame: pl.DataFrame) -> int:
        return int(frame["ts"][-1])


class Events:
    """A source of these columns, which nobody reads."""

    schema, bounded, connector = EVENTS, True, specs.Connector(kind="events")

    def as_source(self) -> "Events":
        return self

    def resolve(self, _: object) -> "Events":
        return self


def source(flow: ps.Flow, **options: object) -> specs.Source:
    stream = flow.read(Events(), uid="events", **{"event_time": "ts", "unit": "ms", **options})
    stream.select("kind", time=col("ts") if "ts" in stream.columns else col("at")).write(ps.discard())
    spec = flow.plan().vertices[0].chain[0].operator.spec
    assert isinstance(spec, specs.Source)
    return spec


def refused(flow: ps.Flow, code: str, match: str, **options: object) -> UserError:
    with pytest.raises(UserError, match=match) as caught:
        source(flow, **options)
    assert caught.value.code == code
    assert "test_watermarks_in_programs.py" in (caught.value.where or "")
    return caught.value


def test_a_bounded_delay_is_what_max_delay_says(flow):
    assert source(flow, watermark=ps.bounded("2s")).watermarks == specs.BoundedDelay(delay_us=2_000_000)
    assert source(ps.Flow("b"), max_delay=timedelta(seconds=2)).watermarks == specs.BoundedDelay(delay_us=2_000_000)
    assert source(ps.Flow("c")).watermarks == specs.BoundedDelay(delay_us=0)


@pytest.mark.parametrize("said", [col("kind") == "end", "until", pl.col("until") - 1])
def test_a_punctuated_source_reads_the_columns_that_tell_time(flow, said):
    spec = source(flow, watermark=ps.punctuated(said))
    assert isinstance(spec.watermarks, specs.Punctuated)
    column = "kind" if not isinstance(said, str) and "kind" in str(said) else "until"
    assert spec.columns == tuple(name for name in EVENTS if name in {"kind", "ts", column})


def test_a_generator_reads_the_columns_that_it_names_or_all(flow):
    assert source(flow, watermark=Last()).columns == ("kind", "ts")

    class All(ps.WatermarkGenerator):
        def on_batch(self, frame: pl.DataFrame) -> None:
            return None

    assert source(ps.Flow("all"), watermark=All()).columns is None


@pytest.mark.parametrize(
    ("expression", "match"),
    [
        ("untill", 'did you mean "until"'),
        (col("price"), '"price" is Float64; the event-time column "ts" is Int64'),
        (col("at"), None),
        (pl.col("until").max(), "looks at other rows"),
        (pl.col("ts", "until"), "made twice|several columns"),
    ],
)
def test_an_expression_that_tells_no_time_is_refused(flow, expression, match):
    if match is None:
        source(flow, watermark=ps.punctuated(expression))
        return
    with pytest.raises(UserError, match=match) as caught:
        source(flow, watermark=ps.punctuated(expression))
    assert caught.value.code in ("P020", "P050")
    assert "test_watermarks_in_programs.py" in (caught.value.where or "")


def test_a_number_has_no_unit_when_the_event_time_is_a_datetime(flow):
    match = 'is Int64; the event-time column "at" is Datetime'
    error = refused(flow, "P050", match, event_time="at", unit=None, watermark=ps.punctuated("until"))
    assert "or a Datetime" in (error.fix or "")


def test_two_answers_to_one_question_are_refused(flow):
    error = refused(flow, "P050", "both say", watermark=ps.bounded("1s"), max_delay="1s")
    assert "one of the two" in (error.fix or "")


def test_a_strategy_needs_event_time(flow):
    refused(flow, "P050", "'processing'", event_time=None, unit=None, time="processing", watermark=ps.bounded("1s"))


@pytest.mark.parametrize("given", ["2s", Last, 5, col("kind") == "end"])
def test_what_is_no_strategy_is_refused(flow, given):
    refused(flow, "P050", "is no watermark strategy", watermark=given)


def test_a_generator_without_its_method_or_with_unknown_columns_is_refused(flow):
    class Nothing(ps.WatermarkGenerator):
        pass

    class Unknown(Last):
        columns = ("tss",)

    refused(flow, "P050", "has no on_batch", watermark=Nothing())
    refused(flow, "P020", 'Unknown.columns: there is no column "tss"', watermark=Unknown())


def test_a_negative_delay_is_refused():
    with pytest.raises(UserError, match=r"P011 .*less than nothing"):
        ps.bounded(-1)


def test_an_alignment_is_a_bound_and_maybe_a_group(flow):
    assert source(flow).alignment is None
    assert source(ps.Flow("a"), align_within="10s").alignment == specs.Alignment(within_us=10_000_000)
    grouped = source(ps.Flow("b"), align_within="10s", align_group="shop").alignment
    assert grouped == specs.Alignment(within_us=10_000_000, group="shop")


@pytest.mark.parametrize(
    "options",
    [
        {"align_group": "shop"},
        {"align_group": "", "align_within": "1s"},
        {"align_group": "a#b", "align_within": "1s"},
        {"align_within": "1s", "time": "processing", "event_time": None, "unit": None},
    ],
)
def test_an_alignment_that_cannot_be_is_refused(flow, options):
    refused(flow, "P051", "align_within", **options)


def test_a_bound_of_nothing_is_refused(flow):
    refused(flow, "P011", "not longer than nothing", align_within=0)


def test_sources_of_one_group_keep_one_bound(flow):
    flow.read(Events(), event_time="ts", unit="ms", uid="first", align_within="10s", align_group="shop")
    flow.read(Events(), event_time="ts", unit="ms", uid="other", align_within="1s", align_group="street")
    error = refused(
        flow, "P051", r'group "shop" keep within 10s \(.*\); this one', align_within="5s", align_group="shop"
    )
    assert "the same align_within" in (error.fix or "")


def test_a_drawing_names_the_strategy(flow):
    from penstock.graph import describing

    operators = {
        "+ 2s": ps.bounded("2s"),
        'watermark kind == ("end")': ps.punctuated(col("kind") == "end"),
        "watermark Last": Last(),
    }
    for shown, strategy in operators.items():
        spec = source(ps.Flow(shown), watermark=strategy)
        (line,) = describing.describe(specs.Operator(uid="events", name="events", spec=spec, output=()))
        assert line.endswith(shown)
