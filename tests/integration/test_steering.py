"""What every action on one run has for whoever makes a button, a route or a command of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils.functional import Promise

from temporalex_django import errors
from temporalex_django.actions.base import storage
from temporalex_django.actions.cancel import Cancel
from temporalex_django.actions.registry import ACTIONS, STEERING
from temporalex_django.actions.steering import Input, Steering
from temporalex_django.actions.targets import RunTarget, find
from temporalex_django.actions.terminate import Terminate
from temporalex_django.models import Instance, OperatorAction
from tests.support.client_flows import Basket

pytestmark = pytest.mark.django_db


def target() -> RunTarget:
    return find("b-1", storage=storage())


@pytest.fixture(autouse=True)
def basket() -> Any:
    return Basket.start(id="b-1")


def test_all_of_them_are_found_by_name() -> None:
    assert {name: cls for name, cls in ACTIONS.items() if issubclass(cls, Steering)} == STEERING
    assert {"cancel", "terminate"} <= set(STEERING)


@pytest.mark.parametrize("name", sorted(STEERING))
def test_a_face_finds_what_it_shows_and_asks(name: str) -> None:
    cls = STEERING[name]

    assert all(isinstance(words, Promise) and str(words) for words in (cls.label, cls.effect, cls.done))
    assert str(cls.effect).endswith(".")
    assert str(cls.done).endswith(".")
    assert len({one.name for one in cls.inputs} | {"reason", "seq", "by", "target"}) == len(cls.inputs) + 4
    codes = {f"temporalex_django.{code}" for code in dict(Instance._meta.permissions)} | {
        "temporalex_django.delete_instance"
    }
    assert f"temporalex_django.{cls.permission}" in codes


@pytest.mark.parametrize("cls", [Cancel, Terminate])
def test_what_cannot_be_done_any_more_says_why_and_does_nothing(cls: type[Steering[Any]]) -> None:
    before = target()
    row = Instance.objects.get()
    assert cls.why_not(row) is None
    Terminate(before).execute()
    row.refresh_from_db()

    assert cls.why_not(row) == "the run is closed already (Terminated)"
    with pytest.raises(errors.WorkflowClosed, match="is closed already"):
        cls(target()).execute()
    assert OperatorAction.objects.count() == 1


def test_a_run_that_closed_since_it_was_looked_up_is_terminated_once() -> None:
    before = target()
    Terminate(before).execute()

    with pytest.raises(errors.WorkflowClosed, match=r"terminate of .* b-1 refused: the run is closed already"):
        Terminate(before).execute()
    assert OperatorAction.objects.count() == 1


class Repaint(Steering[None]):
    """Takes one of everything; it has no name, so that nobody finds it."""

    of = "activity"
    inputs = (
        Input(name="colour", kind=str, label="Colour", required=True, choices=("red", "blue")),
        Input(name="coats", kind=int, label="Coats"),
        Input(name="litres", kind=float, label="Litres"),
        Input(name="glossy", kind=bool, label="Glossy"),
        Input(name="mixed", kind=object, label="Mixed"),
    )

    def perform(self) -> None: ...


def test_inputs_that_fit_are_taken() -> None:
    given = {"colour": "red", "coats": 2, "litres": 1, "glossy": True, "mixed": {"a": [None]}}

    assert Repaint(target(), seq=3, **given).given == given
    assert Repaint(target(), seq=3, colour="blue", litres=0.5).given == {"colour": "blue", "litres": 0.5}


@pytest.mark.parametrize(
    "given",
    [
        {"colour": "green"},
        {"colour": 1},
        {"colour": "red\x00"},
        {"colour": "red", "coats": "2"},
        {"colour": "red", "coats": True},
        {"colour": "red", "coats": 1.5},
        {"colour": "red", "litres": "1"},
        {"colour": "red", "litres": False},
        {"colour": "red", "glossy": 1},
        {"colour": "red", "mixed": object()},
    ],
)
def test_inputs_of_the_wrong_kind_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.PayloadError, match="the input '(colour|coats|litres|glossy|mixed)'"):
        Repaint(target(), seq=3, **given)


def test_what_is_not_asked_for_is_refused() -> None:
    with pytest.raises(TypeError, match="needs colour"):
        Repaint(target(), seq=3)
    with pytest.raises(TypeError, match="takes no shade"):
        Repaint(target(), seq=3, colour="red", shade="dark")
    with pytest.raises(TypeError, match="takes seq, the number of the activity"):
        Repaint(target(), colour="red")
    with pytest.raises(TypeError, match="takes seq"):
        Repaint(target(), colour="red", seq="3")  # type: ignore[arg-type] # on purpose
    with pytest.raises(TypeError, match="takes no seq"):
        Cancel(target(), seq=3)
