"""Functions of the user: their columns, their output, and the bytes that travel."""

import dataclasses
import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TypedDict

import cloudpickle
import polars as pl
import pytest

import penstock as ps
from penstock.model import specs
from penstock.model.errors import UserError


@dataclasses.dataclass
class Priced:
    auction: int
    euros: float


class Word(TypedDict):
    word: str


def to_euros(auction: int, price: int) -> Priced:
    return Priced(auction, price * 0.9)


def split(channel: str) -> Iterator[Word]:
    yield from ({"word": word} for word in channel.split())


def doubled(prices: pl.Series) -> pl.Series:
    return prices * 2


def spec_of(stream):
    uid = stream._uid
    return next(node.operator.spec for node in stream._builder.logical().nodes if node.operator.uid == uid)


def test_a_map_takes_the_columns_it_names_and_gives_what_it_is_annotated_with(bids):
    made = bids.map(to_euros)
    assert made.schema == {"auction": pl.Int64, "euros": pl.Float64}
    function = spec_of(made).function
    assert function.columns == ("auction", "price")
    assert function.name == "to_euros"
    assert cloudpickle.loads(function.pickled)(1, 100).euros == 90.0


def test_a_flat_map_gives_the_rows_inside_its_iterator(bids):
    made = bids.flat_map(split)
    assert made.schema == {"word": pl.String}
    assert spec_of(made).flat


def test_a_function_may_take_the_whole_row(bids):
    made = bids.map(lambda row: {"n": len(row)}, output={"n": int})
    assert spec_of(made).function.columns is None


def test_a_parameter_that_is_no_column_gets_the_nearest_name(bids):
    with pytest.raises(UserError) as caught:
        bids.map(lambda prices: prices, output={"x": int}, name="enrich")
    assert 'operator "enrich"' in caught.value.what
    assert caught.value.fix == 'did you mean "price"?'


def test_a_function_without_an_output_says_how_to_give_one(bids):
    with pytest.raises(UserError, match=r"P016.*is annotated to return nothing") as caught:
        bids.map(lambda price: price)
    assert "output=" in (caught.value.fix or "")
    with pytest.raises(UserError, match='"map_batches-1": which columns'):
        bids.map_batches(lambda frame: frame)


def test_map_batches_takes_its_output_as_given(bids):
    made = bids.map_batches(lambda frame: frame, output=bids.schema)
    assert made.schema == bids.schema
    assert made.event_time == bids.event_time


class Client:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Enrich:
    def __init__(self) -> None:
        self.client = Client()

    def __call__(self, price: int) -> int:
        return price

    def method(self, price: int) -> int:
        return price


def test_what_cannot_travel_is_named_by_the_way_that_leads_to_it(bids):
    lock = threading.Lock()
    holder = {"inner": [lock]}
    cases = {
        "lock": lambda price: lock and price,
        "holder['inner'][0]": lambda price: holder and price,
        "self.client.lock": Enrich(),
        "partial argument 0": functools.partial(lambda given, price: price, lock),
    }
    for path, function in cases.items():
        with pytest.raises(UserError) as caught:
            bids.map(function, output={"x": int}, name="enrich")
        assert caught.value.code == "P004"
        assert f'operator "enrich" captures a non-serialisable _thread.lock via {path}' in caught.value.what
    with pytest.raises(UserError, match=r"_thread.lock via self\.client\.lock"):
        bids.map(Enrich().method, output={"x": int})


def test_functions_of_the_program_travel_by_value_and_installed_ones_by_reference(bids):
    own = spec_of(bids.map(to_euros)).function.pickled
    assert b"to_euros" in own
    assert b"co_code" in own or len(own) > 400
    installed = spec_of(bids.map_batches(pl.DataFrame.unique, output=bids.schema)).function.pickled
    assert len(installed) < 100


def test_functions_inside_expressions_travel_with_the_program_too(bids):
    made = bids.select(x=pl.col("price").map_batches(doubled, return_dtype=pl.Int64))
    assert made.schema == {"x": pl.Int64}
    script = f"""
import polars, io
opened = polars.Expr.deserialize(io.BytesIO({spec_of(made).expressions[0].polars!r}))
print(polars.DataFrame({{"price": [21]}}).select(opened).item())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd="/", capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "42", done.stderr
    lock = threading.Lock()
    with pytest.raises(UserError, match=r"P004.*captures something non-serialisable"):
        bids.select(x=pl.col("price").map_batches(lambda price: (lock, price)[1], return_dtype=pl.Int64))


def test_a_function_that_gives_a_row_or_none_gives_rows(bids):
    def cheap(auction: int, price: int) -> Priced | None:
        return Priced(auction, price) if price < 10 else None

    def several(auction: int) -> list[Priced]:
        return [Priced(auction, 1.0)] * 2

    assert bids.map(cheap).columns == ["auction", "euros"]
    assert bids.flat_map(several).columns == ["auction", "euros"]


class Total(ps.KeyedProcessFunction):
    total = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, price: int) -> Iterator[Priced]:
        self.total.value += price
        yield Priced(ctx.key, self.total.value)


class PerBatch(ps.KeyedProcessFunction):
    def process_batch(self, ctx, batch):
        return batch


def test_process_takes_keys_columns_states_and_time_from_the_program(bids):
    made = bids.key_by("auction").process(Total(), uid="total")
    spec = spec_of(made)
    assert isinstance(spec, specs.Process)
    assert spec.keys == ("auction",)
    assert spec.function.columns == ("price",)
    assert [state.name for state in spec.states] == ["total"]
    assert spec.event_time == bids.event_time
    assert not spec.per_batch
    assert made.schema == {"auction": pl.Int64, "euros": pl.Float64}


def test_process_per_batch_takes_whole_batches(bids):
    made = bids.key_by("auction").process(PerBatch, output=bids.schema)
    assert spec_of(made).per_batch
    assert spec_of(made).function.columns is None


def test_process_checks_what_it_is_given(bids):
    keyed = bids.key_by("auction")
    with pytest.raises(UserError, match="is not a KeyedProcessFunction"):
        keyed.process(to_euros)

    class Wrong(ps.KeyedProcessFunction):
        def process(self, ctx, prices): ...

    with pytest.raises(UserError, match='no column "prices"'):
        keyed.process(Wrong(), output={"x": int})


def test_dead_letters_are_a_stream_of_their_own(bids):
    made = bids.map(to_euros, on_error="dead_letter")
    assert spec_of(made).on_error == "dead_letter"
    assert made.dead_letters().columns == ["time", "operator", "function", "error", "message", "row"]
    both = made.dead_letters().union(bids.flat_map(split, on_error="dead_letter").dead_letters())
    both.write(ps.discard(), uid="letters")


def test_dead_letters_that_were_not_asked_for_are_refused(bids):
    with pytest.raises(UserError, match=r"(?s)P024 .*on_error=\"dead_letter\""):
        bids.map(to_euros).dead_letters()
    with pytest.raises(UserError, match=r"P016 .*on_error='ignore' is not a policy"):
        bids.map(to_euros, on_error="ignore")


def test_side_outputs_of_a_process_function_are_declared_with_their_columns(bids):
    class Sorted(ps.KeyedProcessFunction):
        def process(self, ctx: ps.KeyedContext, price: int) -> None:
            ctx.output("dear" if price > 100 else "cheap", price)

    made = bids.key_by("auction").process(
        Sorted(), output={"price": int}, side_outputs={"dear": {"price": int}, "cheap": {"price": int}}
    )
    assert made.side_output("dear").schema == {"price": pl.Int64}
    with pytest.raises(UserError, match=r'(?s)P024 .*"deer".*did you mean "dear"'):
        made.side_output("deer")
    with pytest.raises(UserError, match=r'P024 .*cannot be called "dead_letters"'):
        bids.key_by("auction").process(Sorted(), output={"price": int}, side_outputs={"dead_letters": {"price": int}})
