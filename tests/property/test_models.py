"""A model of any shape arrives by types and fields as it was sent, or it is refused where it is sent, on each host."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from itertools import count
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from temporalex_django import Ok, Reply, Stop, activity, api, errors
from temporalex_django.core.payloads.codec import JsonCodec, convert
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment
from tests.property.examples import examples
from tests.support.runs import flow

pydantic = pytest.importorskip("pydantic")
T = TypeVar("T")
_numbers = count()


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(StrEnum):
    BIG = "big"
    SMALL = "small"


class Shape(NamedTuple):
    """A type and a strategy for its values."""

    type: Any
    values: st.SearchStrategy[Any]


#: Without ``fold``, which says nothing in UTC and is not stored.
moments = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC, fold=0))  # noqa: DTZ001
texts = st.text(st.characters(codec="utf-8"), max_size=6)
ATOMS = [
    Shape(int, st.integers(-(2**70), 2**70)),
    Shape(float, st.floats(allow_nan=False, allow_infinity=False)),
    Shape(bool, st.booleans()),
    Shape(str, texts),
    Shape(Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-1000, max_value=1000)),
    Shape(datetime, moments),
    Shape(date, st.dates()),
    Shape(timedelta, st.timedeltas(timedelta(-1000), timedelta(1000))),
    Shape(UUID, st.uuids()),
    Shape(Color, st.sampled_from(Color)),
    Shape(Size, st.sampled_from(Size)),
    Shape(Literal["x", "y"], st.sampled_from(["x", "y"])),
]
KEYS = [ATOMS[3], ATOMS[0], ATOMS[6], ATOMS[8], ATOMS[9], ATOMS[10]]
ELEMENTS = [ATOMS[0], *ATOMS[3:11]]


@st.composite
def containers(draw: Any, inner: st.SearchStrategy[Shape]) -> Shape:
    shape, element, key = draw(inner), draw(st.sampled_from(ELEMENTS)), draw(st.sampled_from(KEYS))
    return draw(
        st.sampled_from(
            [
                Shape(list[shape.type], st.lists(shape.values, max_size=2)),
                Shape(tuple[shape.type, ...], st.lists(shape.values, max_size=2).map(tuple)),
                Shape(tuple[shape.type, int], st.tuples(shape.values, ATOMS[0].values)),
                Shape(dict[key.type, shape.type], st.dictionaries(key.values, shape.values, max_size=2)),
                Shape(set[element.type], st.sets(element.values, max_size=4)),
                Shape(frozenset[element.type], st.frozensets(element.values, max_size=4)),
                Shape(shape.type | None, st.none() | shape.values),
            ]
        )
    )


@st.composite
def dataclass_shapes(draw: Any, inner: st.SearchStrategy[Shape]) -> Shape:
    shapes = draw(st.lists(inner, min_size=1, max_size=3))
    fields: list[Any] = [(f"f{i}", shape.type) for i, shape in enumerate(shapes)]
    given_fields = {f"f{i}": shape.values for i, shape in enumerate(shapes)}
    fields += [("with_default", int, 3), ("made", list[str], dataclasses.field(default_factory=list))]
    options = draw(st.sampled_from([{}, {"frozen": True}, {"slots": True}, {"kw_only": True}]))
    base = dataclasses.make_dataclass(f"Data{next(_numbers)}", fields, **options)
    kinds = [base]
    # A subclass in the place of its base cannot be read back, because the stored data do not name it.
    if draw(st.booleans()):
        more = [("more", int, 0)]
        kinds.append(dataclasses.make_dataclass(f"Sub{next(_numbers)}", more, bases=(base,), **options))
    return Shape(base, st.sampled_from(kinds).flatmap(lambda kind: st.builds(kind, **given_fields)))


@st.composite
def model_shapes(draw: Any, inner: st.SearchStrategy[Shape]) -> Shape:
    shapes = draw(st.lists(inner, min_size=1, max_size=3))
    fields: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for i, shape in enumerate(shapes):
        name, form = f"f{i}", draw(st.sampled_from(["plain", "alias", "choices", "path", "constrained", "default"]))
        sent_as = name
        field: Any = ...
        if form == "alias":
            sent_as, field = f"{name}Alias", pydantic.Field(alias=f"{name}Alias")
        elif form == "choices":
            sent_as = f"{name}_b"
            field = pydantic.Field(validation_alias=pydantic.AliasChoices(f"{name}_a", f"{name}_b"))
        elif form == "path":
            sent_as, field = f"{name}_path", pydantic.Field(validation_alias=pydantic.AliasPath(f"{name}_path", 0))
        elif form == "default":
            field = draw(shape.values)
        kind = Annotated[shape.type, pydantic.Field(description="d")] if form == "constrained" else shape.type
        fields[name] = (kind, field)
        values[sent_as] = st.tuples(shape.values) if form == "path" else shape.values

    def total(self: Any) -> int:
        return 1

    options: dict[str, Any] = {
        "strict": draw(st.booleans()),
        "frozen": draw(st.booleans()),
        "extra": draw(st.sampled_from(["ignore", "forbid", "allow"])),
    }
    computed = {"total": pydantic.computed_field(property(total))} if draw(st.booleans()) else {}
    parent = type(
        f"Parent{next(_numbers)}",
        (pydantic.BaseModel,),
        {"__module__": __name__, "model_config": pydantic.ConfigDict(**options), **computed},
    )
    model = pydantic.create_model(f"Model{next(_numbers)}", __base__=parent, **fields)
    kinds = [model]
    if draw(st.booleans()):
        kinds.append(pydantic.create_model(f"Sub{next(_numbers)}", __base__=model, more=(int, 0)))
    return Shape(
        model,
        st.sampled_from(kinds).flatmap(lambda kind: st.fixed_dictionaries(values).map(lambda data: kind(**data))),
    )


@st.composite
def generic_shapes(draw: Any, inner: st.SearchStrategy[Shape]) -> Shape:
    shape = draw(inner)
    kind = draw(st.sampled_from([Box, Crate]))[shape.type]
    return Shape(kind, shape.values.map(lambda value: kind(value=value)))


@dataclasses.dataclass
class Box(Generic[T]):
    value: T


class Crate(pydantic.BaseModel, Generic[T]):
    value: T


shapes = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(containers(inner), dataclass_shapes(inner), model_shapes(inner), generic_shapes(inner)),
    max_leaves=5,
)


@st.composite
def sent(draw: Any) -> tuple[Any, Any]:
    """Return ``(annotation, value)``."""
    shape = draw(st.one_of(dataclass_shapes(shapes), model_shapes(shapes), containers(shapes), generic_shapes(shapes)))
    return shape.type, draw(shape.values)


def parts_of(value: Any) -> Any:
    """A value as a tree of its types and fields, whatever its ``__eq__`` says."""
    kind = type(value)
    if isinstance(value, pydantic.BaseModel):
        return kind, [(name, parts_of(part)) for name, part in value]
    if dataclasses.is_dataclass(kind):
        return kind, [(field.name, parts_of(getattr(value, field.name))) for field in dataclasses.fields(kind)]
    if isinstance(value, dict):
        return kind, [(parts_of(key), parts_of(part)) for key, part in value.items()]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(parts_of(part)) for part in value)
    if isinstance(value, list | tuple):
        return kind, [*map(parts_of, value)]
    if kind is datetime:
        return kind, repr(value.replace(tzinfo=None)), value.utcoffset()  # pydantic has a time zone of its own
    return kind, repr(value)


def holds_subclass(value: Any) -> bool:
    """Whether some part is of a subclass, which no annotation of these shapes names."""
    return "Sub" in repr(parts_of(value))


@examples(4)
@given(sent())
def test_a_model_arrives_by_types_and_fields_or_is_refused(example: tuple[Any, Any]) -> None:
    kind, value = example
    try:
        made = encode_lossless(value, label="it", read=lambda data: convert(data, kind))
    except errors.PayloadError:
        assert holds_subclass(value), "every other value of these shapes arrives"
        return
    assert not holds_subclass(value)
    stored = JsonCodec()
    assert parts_of(convert(stored.decode(stored.encode(made)), kind)) == parts_of(value)


def arrivals(environment: Any, kind: Any, value: Any) -> list[Any]:
    """What the readers get of a value that goes all ways: as input, argument, result, message and run result."""
    arrived: list[Any] = []

    def echo(one: Any) -> Any:
        arrived.append(one)
        return one

    def take(one: Any, state: Any) -> Any:
        arrived.append(one)
        return Stop(state)

    def answer(one: Any, state: Any) -> Any:
        arrived.append(one)
        return Reply(None, state)

    async def run(self: Any, args: Any) -> Any:
        await api.phase(None, signal={"take": take}, update={"answer": answer})
        arrived.append(args)
        arrived.append(await echoing(args))
        return Ok(args)

    echo.__annotations__ = {"one": kind, "return": kind}
    take.__annotations__ = answer.__annotations__ = {"one": kind}
    run.__annotations__ = {"args": kind, "return": Ok[kind]}
    echoing = activity(name="models.echo", retry=None)(echo)
    handle = environment.start(flow(run, name="Models"), value)
    handle.update("answer", value)
    handle.signal("take", value)
    return [*arrived, handle.result()]


def check_host(environment: Any, example: tuple[Any, Any]) -> None:
    kind, value = example
    if holds_subclass(value):
        with pytest.raises(errors.PayloadError):
            arrivals(environment, kind, value)
        return
    found = arrivals(environment, kind, value)
    assert len(found) >= 6
    assert [parts_of(one) for one in found] == [parts_of(value)] * len(found)


@examples(0.4)
@given(sent())
def test_a_model_arrives_through_all_ways_in_memory(example: tuple[Any, Any]) -> None:
    for evict in (False, True):
        check_host(WorkflowEnvironment(evict=evict), example)


@pytest.mark.each_database
@pytest.mark.django_db
@examples(0.1)
@given(sent())
def test_a_model_arrives_through_all_ways_on_the_database(example: tuple[Any, Any]) -> None:
    for evict in (False, True):
        with transaction.atomic():
            check_host(DjangoEnvironment(evict=evict), example)
            transaction.set_rollback(True)
