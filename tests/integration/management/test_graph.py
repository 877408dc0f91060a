"""``manage.py temporalex graph``: pictures of graphs, with the state of a run."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from temporalex_django import Wait
from temporalex_django.present import picture
from tests.app.graphs import Order
from tests.support.client_flows import Basket, drain

pytestmark = pytest.mark.django_db(transaction=True)


def draw(*arguments: str) -> str:
    out = StringIO()
    call_command("temporalex", "graph", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that waits: it is not to go on while this machine draws it."""
    monkeypatch.setattr(Wait, "timer", lambda _: (3600.0, "timeout"))
    path = tmp_path / "log"
    path.touch()
    handle = Order.start("1", {"path": str(path)})
    drain()
    return handle


def test_mermaid_and_dot_need_nothing(run):
    """HE-170."""
    assert draw("FaultyOrder") == Order.to_mermaid()
    assert draw("FaultyOrder", "--format", "dot") == Order.to_dot()


@pytest.mark.parametrize("ref", ["1", "faulty::1", "run id"])
def test_the_state_of_a_run_is_shown(run, ref):
    """By business value, by id, by run id."""
    text = draw("FaultyOrder", "--id", run.run_id if ref == "run id" else ref)
    for part in ("Check (completed)", "Wait (waiting)", "Ship (requested)", '"Done"'):
        assert part in text
    assert text == Order.to_mermaid(run.instance())


def test_svg_is_the_drawing_of_the_page(run, tmp_path, settings):
    """A picture that a browser can read, with every step and its state in it, in a project without templates."""
    settings.TEMPLATES = []
    path = tmp_path / "order.svg"
    draw("FaultyOrder", "--format", "svg", "--id", "1", "--output", str(path))
    root = ET.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = " ".join(root.itertext())
    for part in ("Check: completed", "Ship: waiting for other steps", "Wait: waiting", "delivered", "Done"):
        assert part in text
    classes = [group.get("class") for group in root.iter("{http://www.w3.org/2000/svg}g")]
    assert classes.count("tx-step tx-step-completed") == len(run.instance().completed_steps)


def test_a_drawing_says_which_steps_it_leaves_out(monkeypatch):
    monkeypatch.setattr(picture, "MAX_STEPS", 2)
    err = StringIO()
    call_command("temporalex", "graph", "FaultyOrder", "--format", "svg", stdout=StringIO(), stderr=err)
    assert "more steps are not drawn. The format mermaid has all." in err.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Nowhere",), "no workflow 'Nowhere'"),
        ((Basket.name,), "is not a graph workflow, so there is nothing to draw"),
        (("FaultyOrder", "--id", "404"), "no run of FaultyOrder has the id 'faulty::404'"),
        (("FaultyOrder", "--version", "2"), "has no version 2"),
    ],
)
def test_what_cannot_be_drawn_is_said(arguments, message):
    with pytest.raises(CommandError, match=message):
        draw(*arguments)
