"""What is handed over comes back as it was, by its annotation, or is refused with its place and a way out."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, Optional, TypedDict
from uuid import UUID

import msgspec
import pytest
from django.db.models import IntegerChoices, TextChoices
from django.utils.functional import lazystr
from django.utils.safestring import SafeString, mark_safe

from temporalex_django.core.payloads.codec import convert, to_plain
from temporalex_django.core.payloads.round_trip import encode_lossless, warn_lossy_value
from temporalex_django.errors import PayloadError, PayloadWarning


class Color(Enum):
    RED = "red"


class Size(StrEnum):
    BIG = "big"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Line:
    price: Decimal
    due: date | None = None


class Bill(msgspec.Struct, rename="camel"):
    total_sum: Decimal
    lines: list[Line]


class Address(TypedDict):
    street: str
    since: date


class Currency(str):
    __slots__ = ()


class Cents(int):
    pass


class Rate(Decimal):
    pass


class FakeDate(date):
    """As those are that tests put in the place of today."""


class FakeNow(datetime):
    """The same."""


class State(TextChoices):
    PAID = "paid", "Paid"


class Rank(IntegerChoices):
    FIRST = 1, "First"


class Shared:
    """``__eq__`` that raises is no reason to fail."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]


NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ID = UUID("0b9d6a3e-5d0c-4b7a-9f3e-1f2d3c4b5a69")

#: Value, annotation, and whether plain data are something else: of these the place of the first is named.
TABLE = [
    (Decimal("12.340"), Decimal, "$"),
    (NOW, datetime, "$"),
    (date(2026, 1, 2), date, "$"),
    (time(3, 4, 5), time, "$"),
    (timedelta(days=1, microseconds=5), timedelta, "$"),
    (ID, UUID, "$"),
    (b"\x00\xff", bytes, "$"),
    ({3, 1, 2}, set[int], "$"),
    (frozenset({"a"}), frozenset[str], "$"),
    ({1: "x"}, dict[int, str], "$"),
    ({date(2026, 1, 2): 1}, dict[date, int], "$"),
    (Color.RED, Color, "$"),
    (Size.BIG, Size, None),
    (Level.HIGH, Level, None),
    (lazystr("later"), str, None),
    (mark_safe("<b>"), str, None),
    (State.PAID, State, None),
    (Rank.FIRST, Rank, None),
    ([{"state": State.PAID}], list[dict[str, State]], None),
    ({"first": Rank.FIRST}, dict[str, Rank | None], None),
    (Currency("CHF"), Currency, None),
    (Cents(3), Cents, None),
    (Rate("0.10"), Rate, "$"),
    (Rate("0.10"), Decimal, "$"),
    (FakeDate(2026, 1, 2), date, "$"),
    (FakeNow(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime, "$"),
    ({"street": mark_safe("x"), "since": FakeDate(2026, 1, 2)}, Address, "$.since"),
    ({"a": [{"b": Decimal(1)}]}, dict[str, list[dict[str, Decimal]]], "$.a[0].b"),
    ((1, "a"), tuple[int, str], None),
    (Line(Decimal(1), date(2026, 1, 2)), Line, "$.price"),
    (Bill(Decimal(1), [Line(Decimal(2))]), Bill, "$.total_sum"),
    ({"street": "x", "since": date(2026, 1, 2)}, Address, "$.since"),
    (None, Optional[Decimal], None),  # noqa: UP045 - as people write it, too
    ([1, "a", None, True, 1.5, {"k": []}], list[Any], None),
]


@pytest.mark.parametrize(("value", "annotation", "place"), TABLE, ids=lambda part: type(part).__name__)
def test_a_type_comes_back_by_its_annotation_and_is_refused_without_one(
    value: Any, annotation: Any, place: str | None
) -> None:
    made = encode_lossless(value, label="it", read=lambda given: convert(given, annotation), annotate="annotate it")
    back = convert(made, annotation)
    assert back == value and (type(back) is type(value) or place is None or isinstance(value, annotation))

    if place is None:
        assert encode_lossless(value, label="it") == made
        return
    with pytest.raises(PayloadError) as caught:
        encode_lossless(value, label="argument 1 of book", read=lambda given: given, annotate="annotate that parameter")
    said = str(caught.value)
    assert said.startswith("argument 1 of book has ") and "annotate that parameter, or convert it first: " in said
    assert (f"at `{place}`" in said) if place != "$" else ("at `" not in said)
    with pytest.raises(PayloadError, match="; convert it: "):
        encode_lossless(value, label="the published state")
    # an annotation that does not say what is inside is none
    if isinstance(value, dict):
        with pytest.raises(PayloadError):
            encode_lossless(value, label="it", read=lambda given: convert(given, dict))


@pytest.mark.parametrize(
    ("value", "base"),
    [(mark_safe("<b>"), str), (State.PAID, str), (Rank.FIRST, int), (Cents(3), int), (Currency("x"), str)],
)
def test_a_text_or_number_of_a_subclass_is_taken_as_its_plain_value(value: Any, base: type) -> None:
    """It is equal to it, and nothing that a reader could see is lost: a text that was safe is escaped again."""
    made = encode_lossless(value, label="it")
    assert type(made) is base and made == value


def test_no_annotation_makes_a_text_safe_and_what_does_not_fit_a_subclass_says_so() -> None:
    with pytest.raises(
        PayloadError, match="a stored string is not known to be safe HTML: annotate str instead of SafeString"
    ):
        convert("<script>", SafeString, label="the payload of signal 'note'")
    for value, annotation in ((True, Cents), ("3", Cents), (1.5, Cents), (3, Currency), (1, Rate), ("x", Rate)):
        with pytest.raises(PayloadError, match="does not fit"):
            convert(value, annotation)


class Loose(TypedDict):
    id: str
    total: Any


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (ID, str),
        (ID, str | None),
        ({2, 1}, Collection[int]),
        (Color.RED, str),
        ({"a": [{"b": Decimal("1.50")}]}, dict[str, list[dict[str, str]]]),
        ({"id": ID, "total": 1}, Loose),
    ],
)
def test_who_says_that_he_takes_what_json_makes_of_it_gets_it(value: Any, annotation: Any) -> None:
    made = encode_lossless(value, label="it", read=lambda given: convert(given, annotation), annotate="annotate it")

    assert made == to_plain(value) == convert(made, annotation)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_lossy_value(value, made, lambda: annotation, reader="whoever wants it so")
    with pytest.raises(PayloadError, match=r"a Decimal at `\$\.total`"):  # of which nothing is said
        encode_lossless(
            {"id": ID, "total": Decimal(1)},
            label="it",
            read=lambda given: convert(given, Loose),
            annotate="annotate it",
        )


def test_pydantic_models_come_back_where_pydantic_is_installed() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Paid", amount=(Decimal, ...), on=(date, ...))
    value = [model(amount=Decimal("1.50"), on=date(2026, 1, 2))]

    made = encode_lossless(value, label="it", read=lambda given: convert(given, list[model]))

    assert made == [{"amount": "1.50", "on": "2026-01-02"}]
    assert convert(made, list[model]) == value
    with pytest.raises(PayloadError, match=r"a Decimal at `\$\[0\]\.amount`"):
        encode_lossless(value, label="it")
    with pytest.raises(PayloadError, match="amount"):
        convert([{"amount": "much", "on": "2026-01-02"}], list[model])


def test_what_cannot_be_compared_or_is_nonsense_says_so_and_nothing_else() -> None:
    with pytest.raises(PayloadError, match="cannot be encoded"):
        encode_lossless({"a": Shared()}, label="it")
    with pytest.raises(PayloadError, match="does not fit"):
        convert(encode_lossless("much", label="it", read=lambda given: convert(given, int)), int)
    long = {"k" * 300: {"k" * 300: Decimal(1)}}
    with pytest.raises(PayloadError) as caught:
        encode_lossless(long, label="it")
    assert len(str(caught.value)) < 400


def test_a_reader_of_messages_gets_plain_data_and_one_warning() -> None:
    def send(value: Any, annotation: Any, reader: str) -> Any:
        made = to_plain(value)
        warn_lossy_value(value, made, lambda: annotation, reader=reader)
        return made

    with pytest.warns(PayloadWarning, match=r"signal 'one' of Flow gets a string where a Decimal was sent") as told:
        made = [send({"total": Decimal(text)}, Any, "signal 'one' of Flow") for text in ("1.0", "2.0")]
    assert made == [{"total": "1.0"}, {"total": "2.0"}]
    assert len(told) == 1 and "total" not in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        send({"total": Decimal("1.0")}, dict[str, Decimal], "signal 'two' of Flow")
        send({"total": "1.0", "x": (1, 2)}, Any, "signal 'three' of Flow")
        send(Decimal("1.0"), int, "signal 'four' of Flow")  # its reader says that it does not fit
