"""A value arrives by types and fields as it was sent, or it is refused where it is sent: tables of kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from temporalex_django import Ok, activity
from temporalex_django.core.messages.phase import build_handler
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import convert, to_plain
from temporalex_django.core.payloads.round_trip import encode_lossless, require_readable
from temporalex_django.engine.external_messages import MessageFingerprint
from temporalex_django.errors import MessageIdTaken, PayloadError, WorkflowDefinitionError
from tests.support.runs import flow

pydantic = pytest.importorskip("pydantic")
attrs = pytest.importorskip("attrs")
T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Bits(Flag):
    READ = 1
    WRITE = 2


class Size(StrEnum):
    BIG = "big"


class Level(IntEnum):
    HIGH = 3


class Corner(Enum):
    TOP = (0, 1)


@dataclass(frozen=True)
class Base:
    x: str


@dataclass(frozen=True)
class Child(Base):
    y: str = ""


@dataclass(frozen=True)
class Lying:
    """It says that it is equal to everything."""

    x: int
    left_out: int = field(default=0, compare=False)

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Holding:
    value: Any


@dataclass(slots=True, kw_only=True)
class Line:
    price: Decimal
    tags: tuple[str, ...] = ()
    owner: Base | None = None
    count: int = field(init=False, default=0)
    notes: list[str] = field(default_factory=list)


@dataclass
class Grows:
    total: int

    def __post_init__(self) -> None:
        self.total += 1


@dataclass
class Raises:
    total: int
    checked: bool = False

    def __post_init__(self) -> None:
        if not self.checked:
            raise ZeroDivisionError("checked")


@dataclass
class Initial:
    total: int
    extra: InitVar[int] = 0


@dataclass
class Box(Generic[T]):
    value: T


class Point(NamedTuple):
    x: int
    y: Decimal


class Address(TypedDict):
    street: str
    since: date


class Shape(msgspec.Struct, rename="camel", tag=True):
    side_length: Decimal


class Square(Shape):
    pass


class Pair(msgspec.Struct, array_like=True):
    one: date
    other: set[int]


@attrs.define
class Plot:
    size: Decimal
    _hidden: int = 0


@attrs.define
class Garden(Plot):
    pass


class Money(str):  # noqa: SLOT000 - its attribute is the point
    """A text that knows more than its characters."""

    currency: str


class Model(pydantic.BaseModel):
    name: str = "n"


class SubModel(Model):
    more: int = 1


class Aliased(pydantic.BaseModel):
    one: int = pydantic.Field(alias="theOne")
    two: date = pydantic.Field(validation_alias=pydantic.AliasChoices("zwei", "deux"))
    three: int = pydantic.Field(validation_alias=pydantic.AliasPath("path", 0), serialization_alias="out")
    inner: Aliased | None = pydantic.Field(None, alias="nested")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True, extra="forbid")
    at: datetime
    day: date
    wait: timedelta
    key: UUID
    price: Decimal
    names: frozenset[str] = frozenset()
    pair: tuple[int, str] = (1, "a")
    color: Color = Color.RED

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> Decimal:
        return self.price * 2


class Extra(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    n: int = 1


class Private(pydantic.BaseModel):
    n: int = 1
    _seen: int = pydantic.PrivateAttr(0)
    _lock: Any = pydantic.PrivateAttr(default_factory=lambda: object())


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class Pets(pydantic.BaseModel):
    pets: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]
    value: date | int | str = 0


class Days(pydantic.RootModel[list[date]]):
    pass


class Names(pydantic.RootModel[set[str]]):
    pass


class Typed(pydantic.BaseModel, Generic[T]):
    value: T


class Login(pydantic.BaseModel):
    user: str = "u"
    password: pydantic.SecretStr | None = None


class Shown(pydantic.BaseModel):
    """A recipe of pydantic: secrets in clear text."""

    password: pydantic.SecretStr | None = None

    @pydantic.field_serializer("password", when_used="json")
    def show(self, value: Any) -> Any:
        return value and value.get_secret_value()


NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ID = UUID("0b9d6a3e-5d0c-4b7a-9f3e-1f2d3c4b5a69")
ALIASED = Aliased(theOne=1, zwei=date(2026, 1, 2), path=[3])
STRICT = Strict(
    at=NOW, day=date(2026, 1, 2), wait=timedelta(1, 2, 3), key=ID, price=Decimal("1.50"), names=frozenset("ab")
)


def in_francs(money: Money) -> Money:
    money.currency = "CHF"
    return money


def counted(line: Line, count: int) -> Line:
    line.count = count
    return line


def seen(model: Private, times: int) -> Private:
    model._seen = times
    return model


ARRIVE = [
    ({Color.RED, Color.BLUE}, set[Color]),
    (frozenset({Bits.READ, Bits.WRITE}), frozenset[Bits]),
    (Bits.READ | Bits.WRITE, Bits),
    ({Color.RED: 1, Color.BLUE: 2}, dict[Color, int]),
    ({Size.BIG: {Level.HIGH: 1}}, dict[Size, dict[Level, int]]),
    ({1.5: 1, 2.0: 2}, dict[float, int]),
    ({ID: [NOW]}, dict[UUID, list[datetime]]),
    ({1, "a", "b c", "b"}, set[int | str]),
    ({(2, 1), (1, 2)}, set[tuple[int, int]]),
    ({Base("b"), Base("a")}, set[Base]),
    (frozenset({frozenset({2, 10}), frozenset({3})}), frozenset[frozenset[int]]),
    ([Base("a"), None], list[Base | None]),
    (counted(Line(price=Decimal("1.0"), tags=("a",), owner=Base("a")), 3), Line),
    (Box(Decimal("1.0")), Box[Decimal]),
    (Lying(1, 2), Lying),
    (Point(1, Decimal(2)), Point),
    ((1, (2.0, "a")), tuple[int, tuple[float, str]]),
    (Square(Decimal(1)), Square),
    (Pair(date(2026, 1, 2), {1, 2}), Pair),
    (Plot(Decimal(1)), Plot),
    ({"street": "s", "since": date(2026, 1, 2)}, Address),
    (Size.BIG, str),
    (ALIASED, Aliased),
    ({"k": (Aliased(theOne=1, zwei=date(2026, 1, 2), path=[3], nested=ALIASED),)}, dict[str, tuple[Aliased, ...]]),
    (STRICT, Strict),
    (Holding([1, {"a": None}]), Holding),
    (Holding(Size.BIG), Holding),
    (Extra(n=1, z={"q": [1]}), Extra),
    (Private(), Private),
    (Pets(pets=[Dog(), Cat()], value=date(2026, 1, 2)), Pets),
    (Days([date(2026, 1, 2)]), Days),
    (Names({"b", "a"}), Names),
    (Typed[Decimal](value=Decimal("1.10")), Typed[Decimal]),
    (Login(), Login),
    (Decimal("NaN"), Decimal),
    (Decimal("-0.00"), Decimal),
    ([-0.0, 1e300, 5e-324], list[float]),
    (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), datetime),
    (time(1, 2, tzinfo=UTC), time),
    (timedelta.max, timedelta),
    (bytearray(b"\0"), bytearray),
    ({"a": {1: Color.RED}}, dict[str, dict[int, Color]]),
    ({"a": 1, "b": None}, dict[str, object]),
]
REFUSED = [
    (Child("a", "b"), Base, "a Child, which would come back as a Base"),
    ({"k": [(Child("a"),)]}, dict[str, list[tuple[Base, ...]]], r"a Child at `\$\.k\[0\]\[0\]`.* a Base"),
    (Line(price=Decimal(1), owner=Child("a")), Line, r"a Child at `\$\.owner`"),
    ({Child("a"), Base("b")}, set[Base], "a set, which would come back as another set"),
    (SubModel(), Model, "a SubModel, which would come back as a Model"),
    ([SubModel()], list[Model | None], r"a SubModel at `\$\[0\]`"),
    (Square(Decimal(1)), Shape, "cannot be read back from JSON|Square"),
    (Garden(Decimal(1)), Plot, "a Garden"),
    (Point(1, Decimal(2)), tuple[int, Decimal], "a Point, which would come back as a tuple"),
    (Plot(Decimal(1), 5), Plot, r"an int at `\$\._hidden`, which would come back as another int"),
    (Line(price=1), Line, r"an int at `\$\.price`, which would come back as a Decimal"),
    (Line(price=Decimal(1), tags=["a"]), Line, r"a list at `\$\.tags`, which would come back as a tuple"),
    (Holding((1,)), Holding, r"a tuple at `\$\.value`, which would come back as a list"),
    (Holding(Base("a")), Holding, r"a Base at `\$\.value`, which would come back as a dict"),
    (Grows(1), Grows, r"an int at `\$\.total`, which would come back as another int"),
    (Raises.__new__(Raises), Raises, "cannot be encoded|cannot be read back|would come back"),
    (Corner.TOP, Corner, "cannot be read back from JSON: .*all str or all int"),
    ({1, 2}, frozenset[int], "a set, which would come back as a frozenset"),
    (bytearray(b"x"), bytes, "a bytearray|bytes"),
    ({Level.HIGH: 1}, dict[int, int], r"a key that is not a string \(Level\)"),
    ({1: 1, "1": 2}, dict[str, int], "two keys of a dict are the same in JSON"),
    (Size.BIG, Color, "a Size|cannot be read back"),
    (Extra(z=date(2026, 1, 2)), Extra, r"a date at `\$\.z`, which would come back as a str"),
    (seen(Private(), 2), Private, r"an int at `\$\._seen`"),
    (Model.model_construct(name=5), Model, r"cannot be read back from JSON: .*name: Input should be a valid string"),
    (Typed(value=Decimal("1.0")), Typed, r"a Decimal at `\$\.value`"),
    (in_francs(Money("5")), str, "a Money, which would come back as a str"),
    (in_francs(Money("5")), Money, "a Money, which would come back as another Money"),
    (NOW.replace(tzinfo=None, fold=1), datetime, "a datetime, which would come back as another datetime"),
    (
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=30))),
        datetime,
        r"convert it first: value.astimezone\(UTC\)",
    ),
    (Decimal(1), int, "cannot be read back from JSON"),
    (OrderedDict(a=date(2026, 1, 1)), dict[str, int], "cannot be read back from JSON"),
]


def parts_of(value: Any) -> Any:
    """A value as a tree of types, fields and elements, whatever its ``__eq__`` says."""
    kind = type(value)
    if isinstance(value, pydantic.BaseModel):
        return kind, parts_of({**dict(value), **(value.model_extra or {})})
    if isinstance(value, dict):
        return dict, [(parts_of(key), parts_of(part)) for key, part in value.items()]
    if isinstance(value, set | frozenset):
        return kind, sorted(map(repr, map(parts_of, value)))
    if isinstance(value, list | tuple):
        return kind, [*map(parts_of, value)]
    if isinstance(value, datetime):
        return datetime, value.replace(tzinfo=None, fold=0), value.utcoffset()
    names = getattr(kind, "__dataclass_fields__", ()) or getattr(kind, "__struct_fields__", ())
    names = names or [one.name for one in getattr(kind, "__attrs_attrs__", ())]
    if names:
        return kind, [(name, parts_of(getattr(value, name))) for name in names]
    return (str, str.__str__(value)) if isinstance(value, str) else (kind, repr(value))


@pytest.mark.parametrize(
    ("value", "annotation"), ARRIVE, ids=lambda part: getattr(part, "__name__", type(part).__name__)
)
def test_a_value_arrives_by_types_and_fields(value: Any, annotation: Any) -> None:
    made = encode_lossless(value, label="it", read=lambda given: convert(given, annotation))

    assert parts_of(convert(made, annotation)) == parts_of(value)
    stored = codec.JsonCodec()
    assert parts_of(convert(stored.decode(stored.encode(made)), annotation)) == parts_of(value)
    require_readable(value, to_plain(value), lambda: annotation, label="it")


@pytest.mark.parametrize(
    ("value", "annotation", "reason"), REFUSED, ids=lambda part: getattr(part, "__name__", "")[:20]
)
def test_a_value_that_would_arrive_changed_is_refused_where_it_is_sent(
    value: Any, annotation: Any, reason: str
) -> None:
    with pytest.raises(PayloadError, match=f"^argument 1 of f .*({reason})"):
        encode_lossless(
            value, label="argument 1 of f", read=lambda given: convert(given, annotation), annotate="annotate f"
        )


def test_the_reader_of_a_message_decides_and_plain_data_is_its_own_affair() -> None:
    def send(value: Any, annotation: Any) -> None:
        require_readable(value, to_plain(value), lambda: annotation, label="the input of Flow")

    for value, annotation in (
        (Child("a"), Base),
        ([SubModel()], list[Model]),
        (Holding((1,)), Holding),
        (Decimal("1.5"), int),
        (Strict.model_construct(**{**dict(STRICT), "price": "much"}), Strict),
    ):
        with pytest.raises(PayloadError, match="^the input of Flow "):
            send(value, annotation)
    send(Child("a", "b"), Any)
    send({"price": Decimal(1)}, dict[str, Any])
    send({"x": 1, "unknown": [1]}, Base)  # JSON cannot change it, so the reader judges it
    send((1, {2}), list[Any])
    send({1: (2,)}, Any)


SECRETS: list[Callable[[Any], Any]] = [
    lambda secret: secret,
    lambda secret: {"a": [secret]},
    lambda secret: (Holding({"a": secret}),),
    lambda secret: Login(password=secret),
    lambda secret: Shown(password=secret),
    lambda secret: {"a": Holding([Login(password=secret)])},
    lambda secret: Extra(z={"deep": [secret]}),
    lambda secret: Typed[Any](value={"k": secret}),
    lambda secret: Shape(secret),
    lambda secret: Plot(secret),
]


@pytest.mark.parametrize("make", SECRETS)
def test_a_secret_is_refused_with_the_next_step_and_never_written(make: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        to_plain(make(pydantic.SecretStr("hunter2")), label="the input")

    said = str(caught.value)
    assert said.startswith("the input cannot be encoded") and "hunter2" not in said and "***" not in said
    assert "pass a reference" in said and "PAYLOAD_CODEC" in said


def test_secret_bytes_are_refused_and_the_path_leads_to_a_secret() -> None:
    with pytest.raises(PayloadError, match=r"at `\$\.a\[0\]\.password`: .*Secret"):
        to_plain({"a": [Login(password=pydantic.SecretStr("x"))]})
    with pytest.raises(PayloadError, match="SecretBytes is a secret"):
        to_plain([pydantic.SecretBytes(b"x")])
    with pytest.raises(PayloadError, match="is a secret"):
        to_plain({"a": pydantic.Secret[int](5)})


def test_fields_of_the_standard_library_are_compared_by_their_own_equality() -> None:
    class Host(pydantic.BaseModel):
        home: Path
        address: IPv4Address

    sent = Host(home=Path("/srv/app"), address=IPv4Address("192.0.2.7"))
    assert {str(sent.home), hash(sent.home)}  # now the path keeps both

    plain = encode_lossless(sent, label="host", read=lambda data: convert(data, Host))
    assert convert(plain, Host) == sent


def test_no_error_about_a_model_quotes_its_data() -> None:
    with pytest.raises(PayloadError) as caught:
        convert({"theOne": "hunter2", "zwei": "2026-01-02", "path": [1]}, Aliased)
    assert "one" in str(caught.value).lower() and "hunter2" not in str(caught.value)


def test_a_model_is_read_from_the_aliases_of_a_client_too() -> None:
    assert convert({"theOne": 1, "deux": "2026-01-02", "path": [3]}, Aliased) == ALIASED


def test_keys_keep_their_order_and_comparisons_do_not_care() -> None:
    value = {"b": 1, "a": {"z": (1,), "y": Holding({"d": 1, "c": 2})}}
    made = to_plain(value)
    assert list(made) == ["b", "a"] and list(made["a"]) == ["z", "y"] and list(made["a"]["y"]["value"]) == ["d", "c"]
    stored = codec.JsonCodec()
    assert list(stored.decode(stored.encode(made))) == ["b", "a"]
    assert list(convert(to_plain({date(2026, 1, 2): 1, date(2026, 1, 1): 2}), dict[date, int]).values()) == [1, 2]

    other = {"a": made["a"], "b": 1}
    assert codec.digest(made) == codec.digest(other) != codec.digest({**made, "b": True})
    first, second, third = (MessageFingerprint("signal", "s", one, None) for one in (made, other, {**made, "b": 1.0}))
    first.require_same("id", second, exact=True)
    with pytest.raises(MessageIdTaken):
        first.require_same("id", third, exact=True)


SETS = """
from enum import Enum
import pydantic
from temporalex_django.core.payloads.codec import to_plain
Color = Enum("Color", [(letter, letter) for letter in "hgfedcba"])
class Model(pydantic.BaseModel):
    names: set[str]
    deep: dict[str, list[frozenset[str]]]
letters = {*"abcdefgh"}
print(to_plain([{*Color}, letters, {"a b", "a", 1, None, 2.5}, {frozenset("ab"), frozenset("cd"), frozenset("ac")},
                Model(names=letters, deep={"k": [frozenset(letters)]})]))
"""


def test_no_hash_seed_changes_the_order_of_a_set() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", SETS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(said) == 1 and said.pop().startswith("[['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'], ['a',")


class Unknown:
    pass


@dataclass
class Secretive:
    password: pydantic.SecretStr


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (pydantic.SecretStr, "is a secret"),
        (pydantic.create_model("Needed", password=(pydantic.SecretStr, ...)), "field 'password' of Needed"),
        (Secretive, "field 'password' of Secretive"),
        (Unknown, "objects of type Unknown are not supported"),
        (str | date, "more than one str-like type"),
        (Cat | Dog, "more than one custom type"),
        (Corner, "all str or all int"),
        (Initial, "InitVar"),
    ],
    ids=str,
)
def test_an_annotation_as_which_nothing_could_arrive_is_refused_at_definition(annotation: Any, reason: str) -> None:
    def fn(value, other=None): ...

    async def run(self, args): ...

    def annotated(function: Any, **hints: Any) -> Any:
        function.__annotations__ = hints
        return function

    for define, part in (
        (lambda: activity(annotated(fn, value=annotation, other=annotation)), "parameter 'value'"),
        (lambda: activity(annotated(fn, **{"return": annotation})), "the result"),
        (lambda: flow(annotated(run, args=annotation)), "the input"),
        (lambda: flow(annotated(run, **{"return": Ok[annotation]})), "the result"),
        (lambda: build_handler("add", "update", annotated(fn, value=annotation)), "update 'add'"),
    ):
        with pytest.raises(WorkflowDefinitionError, match="nothing can be read back") as caught:
            define()
        assert part in str(caught.value) and reason in str(caught.value)


def test_an_annotation_as_which_something_could_arrive_is_none_of_the_definitions_affairs() -> None:
    @activity
    def fine(a: Unknown | None, b: list[Cat] | None, *more: Unknown, c: Later, d: Unknown = None) -> Login: ...  # noqa: F821

    assert fine.name.endswith("fine")
