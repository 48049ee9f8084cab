"""The Nexmark auction site as a source: persons, auctions and bids, 1 : 3 : 46 in every 50 events.

Everything about an event follows from its number and the seed, so that the stream is the same for any number
of splits and any batch size. Of the events of one kind, number n is row n // splits of split n % splits: all
splits advance in event time together. Only the columns that are asked for are made.

The skew is the usual one: half of the bids go to one hot auction of each hundred, three of four come from one
hot bidder of each hundred persons.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from penstock.connectors import base
from penstock.connectors.files import selected
from penstock.connectors.pacing import PacedReader, share, split_numbers
from penstock.connectors.random_streams import Integers, RandomStream
from penstock.model.specs import Connector

EPOCH_EVENTS, PERSONS, AUCTIONS = 50, 1, 3
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
ACTIVE_PERSONS, OPEN_AUCTIONS, AHEAD = 1000, 100, 10
"""Bids go to auctions that are open, or will be soon; so do persons."""
HOT_EVERY = 100
TIME = pl.Datetime("ms")

SCHEMAS: dict[str, pl.Schema] = {
    "persons": pl.Schema({
        "id": pl.Int64(), "name": pl.String(), "email": pl.String(), "credit_card": pl.String(),
        "city": pl.String(), "state": pl.String(), "ts": TIME, "extra": pl.String(),
    }),
    "auctions": pl.Schema({
        "id": pl.Int64(), "item": pl.String(), "description": pl.String(), "initial_bid": pl.Int64(),
        "reserve": pl.Int64(), "ts": TIME, "expires": TIME, "seller": pl.Int64(), "category": pl.Int64(),
        "extra": pl.String(),
    }),
    "bids": pl.Schema({
        "auction": pl.Int64(), "bidder": pl.Int64(), "price": pl.Int64(), "channel": pl.String(),
        "url": pl.String(), "ts": TIME, "extra": pl.String(),
    }),
}  # fmt: skip
SCHEMAS["all"] = pl.Schema(
    {
        "kind": pl.String(),
        "ts": TIME,
        **{name.removesuffix("s"): pl.Struct(dict(SCHEMAS[name])) for name in ("persons", "auctions", "bids")},
    }
)
"""Events of all kinds in one stream: two of the three structs are null in each row."""

FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
PLACES = [
    ("Phoenix", "AZ"), ("Los Angeles", "CA"), ("San Francisco", "CA"), ("Boise", "ID"), ("Portland", "OR"),
    ("Bend", "OR"), ("Redmond", "WA"), ("Seattle", "WA"), ("Kent", "WA"), ("Cheyenne", "WY"),
]  # fmt: skip
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
COLD_CHANNELS = 10_000

Column = Callable[[Integers], pl.Series]


class Nexmark:
    """Makes the columns of events from their numbers."""

    def __init__(self, seed: int, start_ms: int, events_per_second: float) -> None:
        self._seed, self._start_ms, self._events_per_second = seed, start_ms, events_per_second
        self.columns: dict[str, Mapping[str, Column]] = {
            "persons": {
                "id": lambda event: pl.Series(_last_person(event) + FIRST_ID),
                "name": self._name,
                "email": lambda event: _lower_words(self._name(event)) + "@" + self._pick("email", _domains(), event),
                "credit_card": self._credit_card,
                "city": lambda event: self._pick("place", [city for city, _ in PLACES], event),
                "state": lambda event: self._pick("place", [state for _, state in PLACES], event),
                "ts": self._time,
                "extra": self._extra,
            },
            "auctions": {
                "id": lambda event: pl.Series(_last_auction(event) + FIRST_ID),
                "item": lambda event: self._pick("item", _words(20), event),
                "description": lambda event: self._pick("description", _words(100), event),
                "initial_bid": lambda event: pl.Series(self._price("initial", event)),
                "reserve": lambda event: pl.Series(self._price("initial", event) + self._price("reserve", event)),
                "ts": self._time,
                "expires": self._expires,
                "seller": lambda event: self._person("seller", 0, event),
                "category": lambda event: pl.Series(self._below("category", CATEGORIES, event) + FIRST_CATEGORY),
                "extra": self._extra,
            },
            "bids": {
                "auction": self._auction,
                "bidder": lambda event: self._person("bidder", 1, event),
                "price": lambda event: pl.Series(self._price("price", event)),
                "channel": lambda event: _channels().gather(self._channel(event)),
                "url": lambda event: _urls().gather(self._channel(event)),
                "ts": self._time,
                "extra": self._extra,
            },
        }

    def frame(self, kind: str, columns: Sequence[str], event: Integers) -> pl.DataFrame:
        """These columns of events that are all of one kind."""
        return pl.DataFrame({name: self.columns[kind][name](event) for name in columns})

    def mixed_frame(self, columns: Sequence[str], event: Integers) -> pl.DataFrame:
        """Events of any kind, each in the column of its own."""
        place = event % EPOCH_EVENTS
        kind = np.searchsorted([PERSONS, PERSONS + AUCTIONS], place, side="right")
        parts: dict[str, pl.Series] = {
            "kind": pl.Series(["person", "auction", "bid"]).gather(kind),
            "ts": self._time(event),
        }
        for number, name in enumerate(("persons", "auctions", "bids")):
            column = name.removesuffix("s")
            if column not in columns:
                continue
            mine = kind == number
            made = self.frame(name, list(SCHEMAS[name]), event[mine]).to_struct(column)
            where = np.where(mine, np.cumsum(mine) - 1, -1)
            parts[column] = made.gather(pl.Series(where).replace(-1, None))
        return pl.DataFrame({name: parts[name] for name in columns})

    def _stream(self, name: str) -> RandomStream:
        return RandomStream(self._seed, name)

    def _below(self, name: str, bound: "int | Integers", event: Integers) -> Integers:
        return self._stream(name).below(bound, event)

    def _milliseconds(self, event: Integers) -> Integers:
        return np.asarray(event * (1000 / self._events_per_second), dtype=np.int64) + self._start_ms

    def _time(self, event: Integers) -> pl.Series:
        return pl.Series(self._milliseconds(event)).cast(TIME)

    def _expires(self, event: Integers) -> pl.Series:
        ahead = OPEN_AUCTIONS * EPOCH_EVENTS // AUCTIONS
        horizon = self._milliseconds(event + ahead) - self._milliseconds(event)
        return pl.Series(
            self._milliseconds(event) + 1 + self._below("expires", np.maximum(horizon * 2, 1), event)
        ).cast(TIME)

    def _auction(self, event: Integers) -> pl.Series:
        last = _last_auction(event)
        oldest = np.maximum(last - OPEN_AUCTIONS, 0)
        cold = oldest + self._below("auction", last - oldest + 1 + AHEAD, event)
        hot = last // HOT_EVERY * HOT_EVERY
        return pl.Series(np.where(self._below("hot auction", 2, event) > 0, hot, cold) + FIRST_ID)

    def _person(self, role: str, hot_offset: int, event: Integers) -> pl.Series:
        last = _last_person(event)
        active = np.minimum(last + 1, ACTIVE_PERSONS)
        cold = last + 1 - active + self._below(role, active + AHEAD, event)
        hot = last // HOT_EVERY * HOT_EVERY + hot_offset
        return pl.Series(np.where(self._below(f"hot {role}", 4, event) > 0, hot, cold) + FIRST_ID)

    def _price(self, name: str, event: Integers) -> Integers:
        return np.asarray(np.rint(10 ** (self._stream(name).floats(event) * 6) * 100), dtype=np.int64)

    def _channel(self, event: Integers) -> Integers:
        """An index into `_channels`: half of the bids come over one of the hot ones."""
        hot = self._below("hot channel", 2, event) > 0
        bound = np.where(hot, len(HOT_CHANNELS), COLD_CHANNELS)
        return self._below("channel", bound, event) + np.where(hot, 0, len(HOT_CHANNELS))

    def _pick(self, name: str, options: Sequence[str], event: Integers) -> pl.Series:
        return pl.Series(options).gather(self._below(name, len(options), event))

    def _name(self, event: Integers) -> pl.Series:
        return self._pick("first name", FIRST_NAMES, event) + " " + self._pick("last name", LAST_NAMES, event)

    def _credit_card(self, event: Integers) -> pl.Series:
        groups = [
            pl.Series(self._below(f"card {part}", 10_000, event)).cast(pl.String).str.zfill(4) for part in range(4)
        ]
        return pl.select(pl.concat_str(groups, separator=" ")).to_series()

    def _extra(self, event: Integers) -> pl.Series:
        return self._pick("extra", _paddings(), event)


class NexmarkSource:
    """Task side of `nexmark`."""

    sequential = False
    discovers = False

    def __init__(self, connector: Connector) -> None:
        options = connector.options
        self._kind: str = options["kind"]
        self._events: int | None = options["events"]
        self._rate: float | None = options["rate"]
        self._splits: int = options["splits"]
        self._site = Nexmark(options["seed"], options["start_ms"], options["events_per_second"])

    def splits(self) -> Sequence[base.Split]:
        """As many as were asked for."""
        return split_numbers(self._splits)

    def discover(self, seen: frozenset[str], context: base.SourceContext) -> Sequence[base.Split]:
        """Never any."""
        return ()

    def open(
        self, split: base.Split, position: dict[str, Any] | None, context: base.SourceContext
    ) -> base.SplitReader:
        """Position: rows made."""
        number: int = split.options["split"]
        columns = list(selected(SCHEMAS[self._kind], context.columns))

        def make(first: int, count: int, created: Integers) -> pl.DataFrame:
            index = np.arange(first, first + count) * self._splits + number
            if self._kind == "all":
                return self._site.mixed_frame(columns, index)
            return self._site.frame(self._kind, columns, event_number(self._kind, index))

        rows = share(count_of_kind(self._kind, self._events), number, self._splits)
        rate = None if self._rate is None else self._rate / self._splits
        return PacedReader(make, rows, rate, context.clock, position)


def event_number(kind: str, index: Integers) -> Integers:
    """The number among all events of the index-th event of a kind."""
    first, size = _PLACE_IN_EPOCH[kind]
    return np.asarray(index // size * EPOCH_EVENTS + first + index % size)


def count_of_kind(kind: str, events: int | None) -> int | None:
    """How many of the first `events` events are of this kind."""
    if events is None:
        return None
    first, size = _PLACE_IN_EPOCH[kind]
    return events // EPOCH_EVENTS * size + min(max(events % EPOCH_EVENTS - first, 0), size)


_PLACE_IN_EPOCH = {
    "persons": (0, PERSONS),
    "auctions": (PERSONS, AUCTIONS),
    "bids": (PERSONS + AUCTIONS, EPOCH_EVENTS - PERSONS - AUCTIONS),
    "all": (0, EPOCH_EVENTS),
}


def _last_person(event: Integers) -> Integers:
    """The newest person when this event happens, counted from 0."""
    return np.asarray(event // EPOCH_EVENTS)


def _last_auction(event: Integers) -> Integers:
    """The newest auction when this event happens, counted from 0."""
    epoch, place = np.divmod(event, EPOCH_EVENTS)
    newest = epoch * AUCTIONS + np.clip(place - PERSONS, -1, AUCTIONS - 1)
    return np.asarray(np.maximum(newest, 0))


def _lower_words(names: pl.Series) -> pl.Series:
    return names.str.to_lowercase().str.replace(" ", ".", literal=True)


@functools.cache
def _channels() -> pl.Series:
    return pl.Series([*HOT_CHANNELS, *(f"channel-{number}" for number in range(COLD_CHANNELS))])


@functools.cache
def _urls() -> pl.Series:
    paths = RandomStream(0, "urls").words(np.arange(COLD_CHANNELS + len(HOT_CHANNELS)))
    return pl.Series(
        [
            f"https://www.nexmark.com/{path % 2**20:05x}/{path >> 20 & 0xFFFFF:05x}/item.htm?query=1"
            + (f"&channel_id={number}" if number % 10 else "")
            for number, path in enumerate(paths.tolist())
        ]
    )


@functools.cache
def _words(length: int) -> list[str]:
    """A thousand made-up texts of about this length."""
    codes = RandomStream(0, f"words {length}").below(26, np.arange(1000 * length)).reshape(1000, length) + ord("a")
    return [
        "".join(map(chr, row[: length // 2 + number % (length // 2 + 1)])) for number, row in enumerate(codes.tolist())
    ]


@functools.cache
def _domains() -> list[str]:
    return [f"{word}.com" for word in _words(10)[:50]]


@functools.cache
def _paddings() -> list[str]:
    """What makes rows as long as the benchmark wants them."""
    return _words(60)[:256]
