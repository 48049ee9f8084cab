"""What a function declares, and what is said when it declares nothing usable."""

import datetime
import pickle
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

from penstock.model.errors import UserError
from penstock.model.specs import StateField
from penstock.operators.contexts import Context, KeyedContext, microseconds
from penstock.operators.user_functions import (
    KeyedProcessFunction,
    ValueState,
    describe,
    needed_columns,
    parameter_names,
)


@dataclass
class Point:
    x: int
    y: float | None


class Totals(KeyedProcessFunction):
    total = ValueState(int, default=0)
    place = ValueState(Point)
    price = ValueState(pl.Decimal(10, 2))
    guessed = ValueState(default=1.5)

    def process(self, ctx: KeyedContext, price: int, at: int) -> None: ...


class More(Totals):
    names = ValueState(list[str], default=[])

    def __init__(self, limit: int) -> None:
        self.limit = limit


def test_columns_and_states_are_described() -> None:
    description = describe(More(3))
    assert description.columns == ("price", "at")
    assert not description.per_batch
    assert description.states == (
        StateField(name="total", type="Int64", default=0),
        StateField(name="place", type="Struct(x: Int64, y: Float64)"),
        StateField(name="price", type="Decimal(10, 2)"),
        StateField(name="guessed", type="Float64", default=1.5),
        StateField(name="names", type="List(String)", default=[]),
    )


def test_each_instance_has_states_of_its_own_also_outside_a_job() -> None:
    one, other = More(1), More(2)
    one.total.value += 5
    assert (one.total.value, other.total.value) == (5, 0)
    one.total.clear()
    assert one.total.value is None
    assert pickle.loads(pickle.dumps(other)).total.value == 0
    with pytest.raises(UserError, match="P016"):
        one.total.get_many(pl.DataFrame())


def test_a_function_per_batch_needs_all_columns() -> None:
    class Batches(KeyedProcessFunction):
        def process_batch(self, ctx: KeyedContext, batch: pl.DataFrame) -> None: ...

    description = describe(Batches())
    assert (description.columns, description.per_batch) == (None, True)


def test_a_function_has_exactly_one_form() -> None:
    class Neither(KeyedProcessFunction):
        pass

    class Both(Totals):
        def process_batch(self, ctx: KeyedContext, batch: pl.DataFrame) -> None: ...

    for function, word in ((Neither(), "neither"), (Both(), "both")):
        with pytest.raises(UserError, match=f"P016 here: .* has {word}"):
            describe(function, where="here")


def test_a_state_without_a_column_type_is_refused_by_name() -> None:
    class Odd(KeyedProcessFunction):
        cache = ValueState(dict)

        def process(self, ctx: KeyedContext) -> None: ...

    with pytest.raises(UserError, match=r"P017 here: state cache: .*dict"):
        describe(Odd(), where="here")


def test_parameters_name_columns_and_defaults_are_left_alone() -> None:
    assert parameter_names(lambda price, at, scale=3: 0) == ("price", "at")
    assert needed_columns(("ctx", "price")) == ("price",)
    assert needed_columns(("row", "price")) is None


@pytest.mark.parametrize("function", [lambda: 0, lambda *columns: 0, lambda **columns: 0, max])
def test_a_function_that_names_no_columns_is_refused(function: Any) -> None:
    with pytest.raises(UserError, match="P016"):
        parameter_names(function)


def test_times_are_microseconds_or_datetimes() -> None:
    assert microseconds(5) == 5
    assert microseconds(datetime.datetime(1970, 1, 1, 0, 0, 1)) == 1_000_000  # noqa: DTZ001
    zone = datetime.timezone(datetime.timedelta(hours=1))
    assert microseconds(datetime.datetime(1970, 1, 1, 1, 0, 1, tzinfo=zone)) == 1_000_000


def test_a_context_says_where_it_is() -> None:
    context = Context(2, 4)
    assert (context.subtask, context.parallelism) == (2, 4)
