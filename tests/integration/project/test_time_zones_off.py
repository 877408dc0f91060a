"""A project with ``USE_TZ = False`` is told so, wherever it begins."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import mail
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from temporalex_django import Ok, Workflow, errors
from temporalex_django.models import Chain, Schedule
from temporalex_django.testing import drain

pytestmark = pytest.mark.django_db


class InNaiveTime(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(args)


def test_the_check_warns_and_names_the_way_out(settings: Any) -> None:
    assert [message for message in run_checks() if message.id == "temporalex_django.W015"] == []

    settings.USE_TZ = False

    (warning,) = [message for message in run_checks() if message.id == "temporalex_django.W015"]
    assert "USE_TZ is False" in warning.msg
    assert "Set USE_TZ = True" in str(warning.hint)


def test_starts_workers_and_commands_are_refused(settings: Any) -> None:
    settings.USE_TZ = False

    with pytest.raises(errors.NotConfigured, match="Set USE_TZ = True"):
        InNaiveTime.start(1)
    with pytest.raises(errors.NotConfigured, match="Set USE_TZ = True"):
        drain()
    for command in (["list"], ["doctor"], ["worker", "--burst"], ["start", InNaiveTime.name]):
        with pytest.raises((errors.NotConfigured, CommandError), match="Set USE_TZ = True"):
            call_command("temporalex", *command)
    settings.USE_TZ = True
    assert not Chain.objects.exists()


def test_a_migration_goes_through(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver of ``post_migrate`` leaves schedules alone, which it could not store."""
    monkeypatch.delattr(mail, "outbox")  # by which it recognizes a test database
    settings.USE_TZ = False

    call_command("migrate", verbosity=0)

    settings.USE_TZ = True
    assert not Schedule.objects.exists()
