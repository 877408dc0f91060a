"""Failed messages in the database: who sees them, where, and what is written about who handled them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from temporalex_django import errors
from temporalex_django.core.payloads.codec import digest
from temporalex_django.models import Message, OperatorAction
from temporalex_django.signals import signal_failed
from tests.support.matrix import Row

pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("rows of messages")]


@pytest.fixture
def failed() -> Any:
    return Row(None, print, "failed").ready()


@pytest.mark.parametrize("name", ["redeliver", "discard"])
def test_a_handle_uses_all_that_it_is_given(failed: Any, name: str) -> None:
    call = getattr(failed, name)
    with pytest.raises(errors.ActionNotPossible, match="no failed message with the id lost-2"):
        call("lost-2")
    with pytest.raises(errors.ActionNotPermitted):
        call("lost-1", by=get_user_model().objects.create_user("eve"))
    call("lost-1", reason="because", by=get_user_model().objects.create_superuser("ann"))

    row = OperatorAction.objects.filter(action=name).order_by("id").last()  # the first was refused
    assert row is not None
    assert (row.reason, row.actor_name) == ("because", "ann")
    assert row.details["message"] == "lost-1"
    assert row.details["digest"] == digest(5)
    message = Message.objects.get(request_id="lost-1")
    assert (message.outcome_status, message.settled) == ((None, False) if name == "redeliver" else ("discarded", True))


def test_doctor_names_them(failed: Any) -> None:
    out = io.StringIO()
    with pytest.raises((SystemExit, CommandError)):
        call_command("temporalex", "doctor", stdout=out)
    assert "The handler of the signal “lost” of test.MatrixAstray has failed for 1 signal since" in out.getvalue()
    assert f"manage.py temporalex redeliver {failed.id}" in out.getvalue()


def test_a_signal_of_django_tells_of_each(django_capture_on_commit_callbacks: Any) -> None:
    heard: list[Any] = []

    def receiver(**arguments: Any) -> None:
        heard.append(arguments)

    signal_failed.connect(receiver)
    with django_capture_on_commit_callbacks(execute=True):
        handle = Row(None, print, "failed").ready()
    (told,) = heard
    assert told["workflow_id"] == handle.id
