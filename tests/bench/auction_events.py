"""Events of an online auction, as the Nexmark benchmark generates them: persons, auctions and bids.

Of 50 consecutive events, the first is a person, three are auctions and the rest are bids. Half of the bids
are for the latest hot auction, and most sellers and bidders are the latest hot person; the others are recent.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_TIME: Final = pa.timestamp("ms", "UTC")
SCHEMAS: Final = {
    "person": pa.schema({
        "id": pa.int64(), "name": pa.string(), "email_address": pa.string(), "credit_card": pa.string(),
        "city": pa.string(), "state": pa.string(), "event_time": _TIME, "extra": pa.string(),
    }),
    "auction": pa.schema({
        "id": pa.int64(), "item_name": pa.string(), "description": pa.string(), "initial_bid": pa.int64(),
        "reserve": pa.int64(), "event_time": _TIME, "expires": _TIME, "seller": pa.int64(),
        "category": pa.int64(), "extra": pa.string(),
    }),
    "bid": pa.schema({
        "auction": pa.int64(), "bidder": pa.int64(), "price": pa.int64(), "channel": pa.string(),
        "url": pa.string(), "event_time": _TIME, "extra": pa.string(),
    }),
    "side": pa.schema({"key": pa.int64(), "value": pa.string(), "event_time": _TIME}),
}  # fmt: skip
START: Final = 1_436_918_400_000
"""Time of the first event in milliseconds."""
_FIRST_ID, _ID_LEAD = 1000, 10
_EVENTS, _AUCTIONS = 50, 3
_IN_FLIGHT, _ACTIVE, _HOT = 100, 1000, 100
_CATEGORIES = 5
_POOL = 1000
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle",
           "Kent", "Cheyenne")  # fmt: skip
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")


class AuctionEvents:
    """Events with consecutive numbers.

    Args:
        first: number of the first event.
        count: number of events.
        rate: events per second.
    """

    def __init__(self, first: int, count: int, rate: int = 10_000) -> None:
        self._numbers = np.arange(first, first + count)
        self._rate = rate
        self._random = np.random.default_rng(first)

    @property
    def watermark(self) -> int:
        """Time in milliseconds that all later events follow."""
        return int(self._times(self._numbers[-1:] + 1)[0]) - 1

    def batches(self) -> dict[str, pa.RecordBatch]:
        """Return the events of each kind."""
        place = self._numbers % _EVENTS
        columns = {
            "person": self._persons(self._numbers[place == 0]),
            "auction": self._auctions(self._numbers[(place > 0) & (place <= _AUCTIONS)]),
            "bid": self._bids(self._numbers[place > _AUCTIONS]),
        }
        return {
            name: pa.record_batch([pa.array(each).cast(field.type) for each, field in zip(
                values, SCHEMAS[name], strict=True)], schema=SCHEMAS[name])
            for name, values in columns.items()
        }  # fmt: skip

    def _persons(self, numbers: Any) -> list[Any]:
        count = len(numbers)
        names = self._joined(self._any(_FIRST_NAMES, count), " ", self._any(_LAST_NAMES, count))
        cards = self._random.integers(0, 10**16, count)
        return [
            _FIRST_ID + _last_person(numbers), names,
            self._joined(self._texts(7, count), "@", self._texts(5, count), ".com"),
            pa.array([f"{card:016}" for card in cards.tolist()]),
            self._any(_CITIES, count), self._any(_STATES, count), self._times(numbers),
            self._texts(100, count),
        ]  # fmt: skip

    def _auctions(self, numbers: Any) -> list[Any]:
        count, times = len(numbers), self._times(numbers)
        initial = self._prices(count)
        horizon = self._times(numbers + _IN_FLIGHT * _EVENTS // _AUCTIONS) - times
        sellers = self._persons_of(numbers, hot=0)
        return [
            _FIRST_ID + _last_auction(numbers), self._texts(20, count), self._texts(100, count), initial,
            initial + self._prices(count), times,
            times + 1 + self._random.integers(0, np.maximum(horizon * 2, 1)), sellers,
            10 + self._random.integers(0, _CATEGORIES, count), self._texts(200, count),
        ]  # fmt: skip

    def _bids(self, numbers: Any) -> list[Any]:
        count, last = len(numbers), _last_auction(numbers)
        oldest = np.maximum(last - _IN_FLIGHT, 0)
        recent = oldest + self._random.integers(0, last - oldest + 1 + _ID_LEAD)
        auctions = np.where(self._random.integers(0, 2, count) > 0, last // _HOT * _HOT, recent)
        number = self._random.integers(0, 10_000, count)
        is_hot = pa.array(self._random.integers(0, 2, count) > 0)
        has_id = pa.array(self._random.integers(0, 10, count) > 0)
        text = pa.array(number).cast(pa.string())
        parts = [part for _ in range(3) for part in ("/", self._texts(5, count))]
        page = self._joined("https://www.nexmark.com", *parts, "/item.htm?query=1")
        identified = self._joined(page, "&channel_id=", text)
        return [
            _FIRST_ID + auctions, self._persons_of(numbers, hot=1), self._prices(count),
            pc.if_else(is_hot, self._any(_CHANNELS, count), self._joined("channel-", text)),
            pc.if_else(pc.and_not(has_id, is_hot), identified, page), self._times(numbers),
            self._texts(50, count),
        ]  # fmt: skip

    def _times(self, numbers: Any) -> Any:
        return START + numbers * 1000 // self._rate

    def _persons_of(self, numbers: Any, hot: int) -> Any:
        """Return ids of persons; the hot person has the offset ``hot`` in its hundred."""
        last = _last_person(numbers)
        active = np.minimum(last + 1, _ACTIVE)
        recent = last + 1 - active + self._random.integers(0, active + _ID_LEAD)
        is_hot = self._random.integers(0, 4, len(numbers)) > 0
        return _FIRST_ID + np.where(is_hot, last // _HOT * _HOT + hot, recent)

    def _prices(self, count: int) -> Any:
        return np.round(10 ** (self._random.random(count) * 6) * 100).astype(np.int64)

    def _any(self, values: Any, count: int) -> Any:
        return pa.array(values).take(pa.array(self._random.integers(0, len(values), count)))

    def _texts(self, length: int, count: int) -> Any:
        letters = self._random.integers(97, 123, (_POOL, length), dtype=np.uint8)
        return self._any([row.tobytes().decode() for row in letters], count)

    def _joined(self, *parts: Any) -> Any:
        return pc.binary_join_element_wise(*parts, "")


def side_input(count: int = 10_000) -> pa.RecordBatch:
    """Return the rows of the bounded side input."""
    keys = pa.array(range(count), pa.int64())
    times = pa.array([START] * count, pa.int64()).cast(_TIME)
    return pa.record_batch([keys, keys.cast(pa.string()), times], schema=SCHEMAS["side"])


def _last_person(numbers: Any) -> Any:
    """Return the number of the last person before or at each event."""
    return numbers // _EVENTS


def _last_auction(numbers: Any) -> Any:
    """Return the number of the last auction before or at each event; -1 before the first auction."""
    return numbers // _EVENTS * _AUCTIONS + np.clip(numbers % _EVENTS - 1, -1, _AUCTIONS - 1)
