"""Polars expressions as native columns of Spark, wherever both mean the same.

This is the one place where the two are made equal: what Spark computes otherwise (division by zero, the floor of a
negative quotient, weeks, NaN, positions beyond a list) is written so that the result is that of Polars. What cannot be
is `NotNative`; the caller then has Polars itself compute it in a Python worker. So nothing is ever nearly the same.

An expression comes as Polars serializes it. What its parts are is asked of Polars: the types that it settles on say
how Spark has to cast. A part without columns is computed by Polars here and now.
"""

import datetime
import io
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import polars as pl
from polars.exceptions import PolarsError
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.batch.columns import is_own_type, spark_type
from penstock.model.durations import parse_duration
from penstock.model.specs import Expression

Tree = Any
"""A part of an expression as Polars writes it in JSON: a word, or a word with what belongs to it."""

_COMPARISONS: dict[str, Callable[[Column, Column], Column]] = {
    "Eq": lambda left, right: left == right,
    "NotEq": lambda left, right: left != right,
    "Lt": lambda left, right: left < right,
    "LtEq": lambda left, right: left <= right,
    "Gt": lambda left, right: left > right,
    "GtEq": lambda left, right: left >= right,
    "EqValidity": lambda left, right: left.eqNullSafe(right),
    "NotEqValidity": lambda left, right: ~left.eqNullSafe(right),
}
_FIELDS: dict[str, Callable[[Column], Column]] = {
    "Year": F.year,
    "Month": F.month,
    "Day": F.dayofmonth,
    "Hour": F.hour,
    "Minute": F.minute,
    "Second": F.second,
    "Quarter": F.quarter,
    "OrdinalDay": F.dayofyear,
    "WeekDay": lambda time: F.weekday(time) + 1,
    "Week": F.weekofyear,
}
_STRFTIME = {"Y": "yyyy", "m": "MM", "d": "dd", "H": "HH", "M": "mm", "S": "ss"}
_DAY_US = 86_400_000_000
_WEEK_US = 7 * _DAY_US
_MONDAY_US = 4 * _DAY_US
"""The first Monday after 1970 began."""

_PLAIN_PATTERN = re.compile(r"[\w =&:/,;@#%!'\"<>~()?^*+{}|\[\]-]*")
"""Regular expressions of these characters alone mean the same to Rust and to Java."""


class NotNative(Exception):
    """Spark has nothing that means the same."""


class Translation:
    """Turns expressions over these columns into columns of Spark."""

    def __init__(self, schema: Mapping[str, pl.DataType], columns: Mapping[str, Column]) -> None:
        self._schema, self._columns = pl.Schema(schema), columns
        self._empty = pl.LazyFrame(schema=self._schema)
        self._types: dict[str, pl.DataType] = {}

    def native(self, expression: Expression) -> Column:
        """The expression under its own name; NotNative with the reason."""
        tree = tree_of(expression)
        return self._typed(tree).alias(expression.name)

    # ------------------------------------------------------------ types

    def type_of(self, tree: Tree) -> pl.DataType:
        """What Polars makes of this part."""
        text = json.dumps(tree)
        if text not in self._types:
            try:
                types = self._empty.select(_deserialized(text)).collect_schema().dtypes()
            except (PolarsError, ValueError, TypeError) as error:
                raise NotNative(f"its type is not known ({str(error).partition(chr(10))[0]})") from None
            if len(types) != 1:
                raise NotNative("it makes several columns")
            self._types[text] = types[0]
        return self._types[text]

    def _typed(self, tree: Tree) -> Column:
        """A part, in the type that Spark has for what Polars makes of it."""
        kind = self.type_of(tree)
        if not is_own_type(kind) and not self._is_column(tree) and not kind.is_unsigned_integer():
            raise NotNative(f"{kind} is no type of Spark's")
        return self.column(tree).cast(spark_type(kind))

    def _is_null(self, tree: Tree) -> bool:
        return bool(tree == {"Literal": {"Scalar": {"Null": "Null"}}})

    def _is_column(self, tree: Tree) -> bool:
        match tree:
            case {"Column": _}:
                return True
            case {"Alias": [inner, _]}:
                return self._is_column(inner)
        return False

    def _plain(self, tree: Tree) -> Column:
        """A part whose values Spark understands."""
        kind = self.type_of(tree)
        if kind == pl.Null and self._is_null(tree):
            return F.lit(None)
        if not is_own_type(kind) and not kind.is_unsigned_integer():
            raise NotNative(f"{kind} is no type of Spark's")
        return self.column(tree)

    # ------------------------------------------------------------ parts

    def column(self, tree: Tree) -> Column:
        """One part."""
        match tree:
            case {"Column": str(name)}:
                if name not in self._columns:
                    raise NotNative(f"there is no column {name}")
                return self._columns[name]
            case {"Alias": [inner, _]}:
                return self.column(inner)
            case {"Function": {"function": "Repeat", "input": [value, "Len"]}}:
                return self.column(value)
        if (constant := self._constant(tree)) is not None:
            return constant
        match tree:
            case {"BinaryExpr": {"left": left, "op": str(operation), "right": right}}:
                return self._binary(tree, left, operation, right)
            case {"Ternary": {"predicate": predicate, "truthy": yes, "falsy": no}}:
                kind = spark_type(self.type_of(tree))
                chosen = F.when(self._plain(predicate), self._plain(yes).cast(kind))
                return chosen.otherwise(self._plain(no).cast(kind))
            case {"Cast": {"expr": inner, "options": options}}:
                return self._cast(inner, self.type_of(tree), strict=options == "Strict")
            case {"Function": {"function": function, "input": list(inputs)}}:
                return self._function(tree, function, inputs)
        raise NotNative(f"Spark has no {_word(tree)}")

    def _constant(self, tree: Tree) -> Column | None:
        match tree:
            case {"Literal": {"Dyn": {"Float": float(value)}} | {"Scalar": {"Float64": float(value)}}}:
                return literal(value, pl.Float64())  # as Python reads it: exactly
        expr = _deserialized(json.dumps(tree))
        try:
            if expr.meta.root_names() or "Len" in json.dumps(tree) or expr.meta.has_multiple_outputs():
                return None
            series = pl.select(expr).to_series()
        except PolarsError:
            return None
        if len(series) != 1 or series.dtype.is_nested():
            return None
        return literal(series.item(), series.dtype)

    def _binary(self, tree: Tree, left: Tree, operation: str, right: Tree) -> Column:
        if operation in ("And", "Or", "LogicalAnd", "LogicalOr", "Xor") and self.type_of(tree) == pl.Boolean:
            one, other = self._plain(left), self._plain(right)
            if operation == "Xor":
                return one != other
            return one & other if operation.endswith("And") else one | other
        if operation in _COMPARISONS:
            common = self._common(left, right)
            return _COMPARISONS[operation](self._plain(left).cast(common), self._plain(right).cast(common))
        return self._arithmetic(tree, left, operation, right)

    def _common(self, left: Tree, right: Tree) -> str:
        """What both sides of a comparison are cast to."""
        kinds = [self.type_of(left), self.type_of(right)]
        if pl.Null in kinds:
            raise NotNative("a comparison with null")
        if all(kind.is_integer() for kind in kinds):
            return "decimal(20,0)" if pl.UInt64 in kinds else "bigint"
        if all(kind.is_integer() or kind.is_float() for kind in kinds):
            if kinds[0] == kinds[1] == pl.Float32:
                return "float"
            if pl.Float32 in kinds:
                raise NotNative("a comparison of Float32 with another type")
            return "double"
        if all(isinstance(kind, pl.Datetime | pl.Date) for kind in kinds):
            zones = {getattr(kind, "time_zone", None) for kind in kinds}
            self._require_one_unit((left, right), kinds)
            if len(zones) == 1:
                if all(isinstance(kind, pl.Date) for kind in kinds):
                    return "date"
                return "timestamp_ntz" if zones == {None} else "timestamp"
        if kinds[0] == kinds[1] and kinds[0] in (pl.String, pl.Boolean, pl.Binary):
            return str(spark_type(kinds[0]).simpleString())
        raise NotNative(f"a comparison of {kinds[0]} and {kinds[1]}")

    def _require_one_unit(self, sides: Sequence[Tree], kinds: Sequence[pl.DataType]) -> None:
        """Polars compares milliseconds with microseconds in milliseconds."""
        if len({kind.time_unit for kind in kinds if isinstance(kind, pl.Datetime)}) < 2:
            return
        for side, kind in zip(sides, kinds, strict=True):
            if isinstance(kind, pl.Datetime) and kind.time_unit == "us":
                value = self._value(side)
                if not isinstance(value, datetime.datetime) or value.microsecond % 1_000:
                    raise NotNative("a comparison of times in other units")

    def _arithmetic(self, tree: Tree, left: Tree, operation: str, right: Tree) -> Column:
        kind = self.type_of(tree)
        sides = (self.type_of(left), self.type_of(right))
        if kind == pl.String and operation == "Plus" and set(sides) == {pl.String()}:
            return F.concat(self._plain(left), self._plain(right))
        if not all(side.is_signed_integer() or side.is_float() for side in (kind, *sides)):
            raise NotNative(f"{operation} of {sides[0]} and {sides[1]}")
        as_result = spark_type(kind)
        one, other = self._plain(left).cast(as_result), self._plain(right).cast(as_result)
        match operation:
            case "Plus":
                return one + other
            case "Minus":
                return one - other
            case "Multiply":
                return one * other
            case "TrueDivide" | "Divide" if kind == pl.Float64:
                return _divided(one, other, self._number(right))
            case "FloorDivide" if kind.is_integer():
                down = F.when(_signs_differ(one % other, other), F.lit(1)).otherwise(F.lit(0))
                return (F.call_function("div", one, other) - down).cast(as_result)
            case "Modulus" if kind.is_integer():
                return _remainder(one, other)
        raise NotNative(f"{operation} of {sides[0]} and {sides[1]}")

    def _number(self, tree: Tree) -> float | None:
        """A constant, as a number."""
        value = self._value(tree)
        return float(value) if isinstance(value, int | float) else None

    def _value(self, tree: Tree) -> Any:
        """A constant, as Polars gives it; None: it is none, or null."""
        expr = _deserialized(json.dumps(tree))
        if expr.meta.root_names() or "Len" in json.dumps(tree):
            return None
        series = pl.select(expr).to_series()
        return series.item() if len(series) == 1 else None

    def _cast(self, inner: Tree, kind: pl.DataType, *, strict: bool) -> Column:
        source = self.type_of(inner)
        column = self._plain(inner)
        if source == kind or _always_fits(source, kind):
            return column.cast(spark_type(kind))
        if kind == pl.String and (source.is_integer() or source == pl.Boolean):
            return column.cast("string")
        if source.is_signed_integer() and kind.is_signed_integer() and not strict:
            limit = 2 ** (8 * _width(kind) - 1)
            return F.when(column.between(-limit, limit - 1), column.cast(spark_type(kind)))
        raise NotNative(f"a cast of {source} to {kind}")

    # ------------------------------------------------------------ functions

    def _function(self, tree: Tree, function: Tree, inputs: Sequence[Tree]) -> Column:
        match function:
            case {"Boolean": name}:
                return self._boolean(name, inputs)
            case {"StringExpr": name}:
                return self._string(tree, name, inputs)
            case {"TemporalExpr": name}:
                return self._temporal(name, inputs)
            case {"ListExpr": name}:
                return self._list(name, inputs)
            case {"StructExpr": {"FieldByName": str(field)}}:
                return self._plain(inputs[0]).getField(field)
            case {"ReplaceStrict": _}:
                return self._replaced(tree, inputs)
            case "AsStruct":
                return F.struct(*(self._plain(each).alias(_name(each)) for each in inputs))
            case "Coalesce" | "FillNull":
                kind = spark_type(self.type_of(tree))
                return F.coalesce(*(self._plain(each).cast(kind) for each in inputs))
            case "Abs" if self.type_of(tree).is_float() or self.type_of(tree).is_signed_integer():
                return F.abs(self._plain(inputs[0]))
            case "Negate" if self.type_of(tree).is_float() or self.type_of(tree).is_signed_integer():
                return -self._plain(inputs[0])
        raise NotNative(f"Spark has no {_word(function)} that means the same")

    def _boolean(self, name: Tree, inputs: Sequence[Tree]) -> Column:
        match name:
            case "IsNull":
                return self.column(inputs[0]).isNull()
            case "IsNotNull":
                return self.column(inputs[0]).isNotNull()
            case {"IsIn": {"nulls_equal": False}}:
                return self._is_in(inputs)
        columns = [self._plain(each) for each in inputs]
        match name:
            case "Not" if self.type_of(inputs[0]) == pl.Boolean:
                return ~columns[0]
            case "AllHorizontal":
                return _folded(columns, lambda one, other: one & other)
            case "AnyHorizontal":
                return _folded(columns, lambda one, other: one | other)
            case "IsNan" | "IsNotNan" if self.type_of(inputs[0]).is_float():
                nan = F.isnan(columns[0]) if name == "IsNan" else ~F.isnan(columns[0])
                return F.when(columns[0].isNotNull(), nan)
            case {"IsBetween": {"closed": str(closed)}}:
                low, high = (
                    ("Gt" if closed in ("None", "Right") else "GtEq"),
                    ("Lt" if closed in ("None", "Left") else "LtEq"),
                )
                return self._binary(None, inputs[0], low, inputs[1]) & self._binary(None, inputs[0], high, inputs[2])
        raise NotNative(f"Spark has no {_word(name)} that means the same")

    def _is_in(self, inputs: Sequence[Tree]) -> Column:
        values = self._value(inputs[1])
        kind = self.type_of(inputs[0])
        if not isinstance(values, pl.Series) or not (kind.is_integer() or kind in (pl.String, pl.Boolean)):
            raise NotNative("is_in of what is no list of integers or texts")
        if kind.is_integer() != values.dtype.is_integer():
            raise NotNative(f"is_in of {kind} among {values.dtype}")
        known = [value for value in values.to_list() if value is not None]
        column = self._plain(inputs[0])
        found = column.isin(known) if known else F.lit(False)
        return F.when(column.isNotNull(), found)

    def _string(self, tree: Tree, name: Tree, inputs: Sequence[Tree]) -> Column:
        text = self._plain(inputs[0])
        match name:
            case "Lowercase":
                return F.lower(text)
            case "Uppercase":
                return F.upper(text)
            case "LenBytes":
                return F.octet_length(text)
            case "LenChars":
                return F.char_length(text)
            case "StartsWith":
                return text.startswith(self._plain(inputs[1]))
            case "EndsWith":
                return text.endswith(self._plain(inputs[1]))
            case {"Contains": {"literal": True}}:
                return text.contains(self._plain(inputs[1]))
            case {"Split": False} | "Split":
                separator = self._value(inputs[1])
                if isinstance(separator, str) and separator and "\\E" not in separator:
                    return F.split(text, f"\\Q{separator}\\E", -1)
            case {"CountMatches": True}:
                wanted = self._value(inputs[1])
                if isinstance(wanted, str) and wanted:
                    gone = F.octet_length(text) - F.octet_length(F.replace(text, F.lit(wanted), F.lit("")))
                    return F.call_function("div", gone, F.lit(len(wanted.encode())))
            case {"Extract": 1}:
                pattern = self._value(inputs[1])
                if isinstance(pattern, str) and _one_sure_group(pattern):
                    return F.when(F.regexp_like(text, F.lit(pattern)), F.regexp_extract(text, pattern, 1))
            case {"ConcatHorizontal": {"delimiter": str(delimiter), "ignore_nulls": ignore}}:
                parts = [self._plain(each).cast("string") for each in inputs]
                joined = F.concat_ws(delimiter, *parts)
                if ignore or all(self.type_of(each) != pl.String for each in inputs):
                    raise NotNative("concat_str that leaves nulls out")
                return F.when(_folded([part.isNotNull() for part in parts], lambda one, other: one & other), joined)
        raise NotNative(f"Spark has no {_word(name)} of texts that means the same")

    def _temporal(self, name: Tree, inputs: Sequence[Tree]) -> Column:
        kind = self.type_of(inputs[0])
        time = self._plain(inputs[0])
        if not isinstance(kind, pl.Datetime | pl.Date):
            raise NotNative(f"{_word(name)} of {kind}")
        match name:
            case str() if name in _FIELDS:
                if isinstance(kind, pl.Date) and name in ("Hour", "Minute", "Second"):
                    raise NotNative(f"{name} of a date")
                return _FIELDS[name](time)
            case "Date":
                return F.to_date(time)
            case "Truncate":
                return self._truncated(time, kind, self._value(inputs[1]))
            case {"TimeStamp": str(unit)} if isinstance(kind, pl.Datetime):
                instant = time.cast("timestamp")
                made = {"Milliseconds": F.unix_millis, "Microseconds": F.unix_micros}.get(unit)
                if made is not None:
                    return made(instant)
            case {"ToString": str(pattern)}:
                return F.date_format(time, _date_pattern(pattern))
        raise NotNative(f"Spark has no {_word(name)} of times that means the same")

    def _truncated(self, time: Column, kind: pl.DataType, every: Any) -> Column:
        if not isinstance(every, str) or not isinstance(kind, pl.Datetime):
            raise NotNative("a truncation by other than a plain duration")
        match re.fullmatch(r"(\d+)(us|ms|s|m|h|d|w)", every):
            case None:
                raise NotNative(f"a truncation by {every}")
            case matched:
                count, unit = int(matched[1]), matched[2]
        step = count * (_WEEK_US if unit == "w" else parse_duration(f"1{unit}", what="every"))
        # From Monday on, as weeks begin there; no other unit cares where days are counted from.
        first = _MONDAY_US if unit == "w" else 0
        micros = F.unix_micros(time.cast("timestamp"))
        return F.timestamp_micros(micros - F.pmod(micros - F.lit(first), F.lit(step)))

    def _list(self, name: Tree, inputs: Sequence[Tree]) -> Column:
        items = self._plain(inputs[0])
        match name:
            case "Length":
                return F.array_size(items)
            case {"Get": bool(null_beyond)}:
                index = self._value(inputs[1])
                if isinstance(index, int) and index >= 0:
                    found = F.get(items, F.lit(index))
                    if null_beyond:
                        return found
                    beyond = F.raise_error(F.lit(f"R005 get({index}) is beyond the end of a list"))
                    there = F.when(F.array_size(items) > index, found)
                    return there.when(items.isNotNull(), beyond.cast(spark_type(_inner(self.type_of(inputs[0])))))
        raise NotNative(f"Spark has no {_word(name)} of lists that means the same")

    def _replaced(self, tree: Tree, inputs: Sequence[Tree]) -> Column:
        if len(inputs) != 4:
            raise NotNative("replace_strict without a default")
        old, new = self._value(inputs[1]), self._value(inputs[2])
        return _mapped(self._plain(inputs[0]), old, new, self.column(inputs[3]), self.type_of(tree))


# ---------------------------------------------------------------- semantics


def literal(value: Any, kind: pl.DataType) -> Column:
    """A value of Polars as a constant of Spark."""
    as_spark = spark_type(kind)
    match value:
        case None:
            return F.lit(None).cast(as_spark)
        case bool() | int() | str() | bytes() | Decimal():
            return F.lit(value).cast(as_spark)
        case float():
            return F.lit(value).cast(as_spark)
        case datetime.datetime() if isinstance(kind, pl.Datetime) and kind.time_unit != "ns":
            if kind.time_zone is None:
                return F.lit(value.isoformat(" ")).cast(as_spark)
            micros = pl.Series([value], dtype=pl.Datetime("us", kind.time_zone)).to_physical().item()
            return F.timestamp_micros(F.lit(micros).cast("bigint"))
        case datetime.date() if isinstance(kind, pl.Date):
            return F.lit(value.isoformat()).cast(as_spark)
    raise NotNative(f"a constant of type {kind}")


def smallest(column: Column, kind: pl.DataType, *, largest: bool = False) -> Column:
    """The aggregate `min` or `max`: of numbers that are none, Polars takes one only when there is nothing else."""
    extreme = F.max if largest else F.min
    if kind.is_float():
        return F.coalesce(extreme(F.when(~F.isnan(column), column)), extreme(column))
    return extreme(column)


def _remainder(one: Column, other: Column) -> Column:
    """With the sign of the divisor, as in Python; null by zero."""
    rest = one % other
    return F.when(_signs_differ(rest, other), rest + other).otherwise(rest)


def _signs_differ(rest: Column, other: Column) -> Column:
    return (rest != 0) & ((rest < 0) != (other < 0))


def _divided(one: Column, other: Column, known: float | None) -> Column:
    """As processors divide: by zero it is infinite, or no number. Spark says null."""
    if known is not None and known != 0:
        return one * F.lit(1.0 / known)  # so Polars divides by a constant
    # Which of the two zeros it is only shows as text.
    by_zero = one * F.when(other.cast("string") == "-0.0", F.lit(float("-inf"))).otherwise(F.lit(float("inf")))
    return F.when(other == 0, by_zero).otherwise(one / other)


def _folded(columns: Sequence[Column], combine: Callable[[Column, Column], Column]) -> Column:
    result = columns[0]
    for column in columns[1:]:
        result = combine(result, column)
    return result


def _mapped(column: Column, old: Any, new: Any, default: Column, kind: pl.DataType) -> Column:
    if not isinstance(old, pl.Series) or not isinstance(new, pl.Series) or len(old) != len(new) or not len(old):
        raise NotNative("replace_strict with other than lists of values")
    pairs = list(zip(old.to_list(), new.to_list(), strict=True))
    if any(before is None for before, _ in pairs):
        raise NotNative("replace_strict of null")
    chosen: Column | None = None
    for before, after in pairs:
        condition, made = column == F.lit(before), literal(after, kind)
        chosen = F.when(condition, made) if chosen is None else chosen.when(condition, made)
    assert chosen is not None
    return chosen.otherwise(default.cast(spark_type(kind)))


def _always_fits(source: pl.DataType, kind: pl.DataType) -> bool:
    if source == pl.Boolean and kind.is_integer():
        return True
    if source.is_integer() and kind.is_integer():
        signs = (source.is_unsigned_integer(), kind.is_unsigned_integer())
        if signs == (False, True):
            return False
        return _width(source) < _width(kind) or (signs[0] == signs[1] and _width(source) == _width(kind))
    if source.is_signed_integer() and kind.is_float():
        return kind == pl.Float64 or _width(source) < 4
    if source == pl.Float32 and kind == pl.Float64:
        return True
    if isinstance(source, pl.Datetime) and isinstance(kind, pl.Datetime):
        return source.time_zone == kind.time_zone and (source.time_unit, kind.time_unit) == ("ms", "us")
    return isinstance(source, pl.Date) and isinstance(kind, pl.Datetime) and kind.time_zone is None


def _width(kind: pl.DataType) -> int:
    return {"8": 1, "6": 2, "2": 4, "4": 8}[str(kind)[-1]]


def _inner(kind: pl.DataType) -> pl.DataType:
    inner: Any = kind.inner if isinstance(kind, pl.List) else pl.Null()
    instance: pl.DataType = inner() if isinstance(inner, type) else inner
    return instance


def _one_sure_group(pattern: str) -> bool:
    """Whether the expression means the same to Rust and Java, and its one group is there whenever it matches."""
    if not _PLAIN_PATTERN.fullmatch(pattern) or any(each in pattern for each in ("&&", "--", "~~", "[[")):
        return False
    if "[" in pattern and re.search(r"\[[^\]]*\[", pattern):
        return False
    opened = [match.start() for match in re.finditer(r"\((?!\?)", pattern)]
    strange = re.search(r"\(\?(?!:)", pattern)
    if len(opened) != 1 or strange:
        return False
    outside = pattern[: opened[0]]
    if outside.count("(") != outside.count(")"):
        return False
    depth, position = 0, opened[0]
    while position < len(pattern):
        depth += (pattern[position] == "(") - (pattern[position] == ")")
        position += 1
        if not depth:
            break
    rest = pattern[position:]
    bare = re.sub(r"\(\?:[^()]*\)", "", outside + rest)
    return not rest.startswith(("?", "*", "{")) and "|" not in bare


def _date_pattern(pattern: str) -> str:
    """A pattern of `strftime` as one of Spark."""
    made, position = "", 0
    while position < len(pattern):
        char = pattern[position]
        if char == "%":
            position += 1
            code = pattern[position : position + 1]
            if code not in _STRFTIME:
                raise NotNative(f"times as text by %{code}")
            made += _STRFTIME[code]
        else:
            made += f"'{char}'" if char.isalpha() else "''" if char == "'" else char
        position += 1
    if any(char in made for char in "[]{}#"):
        raise NotNative("times as text with brackets")
    return made


# ---------------------------------------------------------------- trees


def tree_of(expression: Expression) -> Tree:
    """What Polars says that the expression is made of."""
    return _tree(expression.polars)


def _tree(serialized: bytes) -> Tree:
    with warnings.catch_warnings():
        # Only this form can be read by others than Polars. A test pins it to the installed version.
        warnings.simplefilter("ignore")
        try:
            return json.loads(pl.Expr.deserialize(serialized).meta.serialize(format="json"))
        except (PolarsError, ValueError) as error:
            raise NotNative(f"it cannot be looked into ({str(error).partition(chr(10))[0]})") from None


def _deserialized(text: str) -> pl.Expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pl.Expr.deserialize(io.BytesIO(text.encode()), format="json")


def _name(tree: Tree) -> str:
    match tree:
        case {"Alias": [_, str(name)]} | {"Column": str(name)}:
            return name
    name = _deserialized(json.dumps(tree)).meta.output_name()
    return str(name)


def _word(tree: Tree) -> str:
    """What a part is called."""
    while isinstance(tree, dict) and tree:
        key, inside = next(iter(tree.items()))
        if not isinstance(inside, dict | str):
            return str(key)
        tree = inside if isinstance(inside, str) or len(inside) == 1 else key
    return str(tree)
