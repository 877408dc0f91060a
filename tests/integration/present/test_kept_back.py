"""Work behind a switch, a hold or a limit does not wait for a worker, and is counted apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.authoring.activity import limits_by_name
from temporalex_django.models import ActivityTask, Limit, SwitchedOff
from temporalex_django.operations.fleet import stats
from temporalex_django.operations.fleet.stats import QueueFigures, queue_figures
from temporalex_django.operations.fleet.switches import SwitchOff
from temporalex_django.workers.loop import run_until_idle

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("rows of queues")]


@activity(name="kept.sms", queue="kept")
def sms() -> int:
    return 1


@activity(name="kept.mail", queue="kept")
def mail() -> int:
    return 1


class Tell(Workflow):
    """Sends a text message and a mail."""

    name = "kept.Tell"

    async def run(self, args: Any) -> Any:
        return Ok(await api.parallel([sms(), mail()]))


def figures() -> QueueFigures:
    (found,) = queue_figures(["kept"])
    return found


def told() -> None:
    for number in range(3):
        Tell.start(None, id=f"tell-{number}")
    run_until_idle(queues=["default"])
    ActivityTask.objects.update(due_at=timezone.now() - timedelta(minutes=22))


def test_a_queue_that_is_off_has_no_wait(client: Client) -> None:
    told()
    before = figures()
    assert (before.due_activities, before.kept_back) == (6, 0)
    assert before.waiting_since == before.oldest_due
    SwitchOff("queue", "kept", reason="tests").execute()
    assert (figures().kept_back, figures().waiting_since, figures().due_activities) == (6, None, 6)
    client.force_login(get_user_model().objects.create_superuser("root"))
    page = client.get("/admin/temporalex_django/instance/console/workers/").content.decode()
    row = page.partition('<th scope="row">kept')[2].partition("</tr>")[0]
    assert "22 min" not in row
    assert "by a switch" in row


def test_an_activity_that_is_off_is_counted_apart() -> None:
    told()
    SwitchOff("activity", "kept.sms", reason="tests").execute()
    assert figures().kept_back == 3
    assert figures().waiting_since is not None


def test_a_full_queue_keeps_its_activities_back(settings: Any) -> None:
    told()
    settings.TEMPORALEX = {**getattr(settings, "TEMPORALEX", {}), "QUEUES": {"kept": {"concurrency": 1}}}
    ActivityTask.objects.filter(pk=ActivityTask.objects.values("pk")[:1]).update(owner=7)
    assert (figures().kept_back, figures().waiting_since) == (5, None)


def test_the_longest_wait_is_that_of_the_activities_that_are_not_off() -> None:
    told()
    SwitchOff("activity", "kept.sms", reason="tests").execute()
    due_at = timezone.now() - timedelta(minutes=5)
    ActivityTask.objects.filter(activity=mail.name).update(due_at=due_at)
    assert (figures().kept_back, figures().waiting_since) == (3, due_at)
    # A worker that takes some puts what is off into a partition, and what a limit of a key keeps back is in one, too.
    ActivityTask.objects.update(line="a partition")
    assert (figures().kept_back, figures().waiting_since) == (3, due_at)
    ActivityTask.objects.filter(activity=mail.name).delete()
    assert (figures().kept_back, figures().waiting_since) == (3, None)


def test_a_key_that_one_queue_holds_keeps_back_nothing_of_another() -> None:
    told()
    ActivityTask.objects.update(line="k:shop")
    until = timezone.now() + timedelta(minutes=5)
    hold = SwitchedOff.objects.create(kind="hold", name="elsewhere", key="shop", until=until, since=timezone.now())
    assert (figures().kept_back, figures().waiting_since) == (0, figures().oldest_due)
    SwitchedOff.objects.filter(pk=hold.pk).update(name="kept")
    assert (figures().kept_back, figures().waiting_since) == (6, None)


@activity(name="kept.fax", queue="kept", concurrency=1, rate="2/h", concurrency_per_key=1)
def fax() -> int:
    return 1


class Fax(Workflow):
    """Sends a fax of a shop."""

    name = "kept.Fax"

    async def run(self, args: Any) -> Any:
        return Ok(await fax.options(concurrency_key=args)())


@contextmanager
def replaced_limit(name: str) -> Iterator[None]:
    """A block in which the activity has no limits of its own."""
    limits = limits_by_name.pop(name)
    try:
        yield
    finally:
        limits_by_name[name] = limits


def sent(*shops: str) -> None:
    for shop in shops:
        Fax.start(shop)
    run_until_idle(queues=["default"])


def test_the_limit_of_an_activity_keeps_only_its_own_back() -> None:
    told()
    sent("a", "b")
    assert (figures().due_activities, figures().kept_back) == (8, 0)
    ActivityTask.objects.filter(activity=fax.name, line__endswith="a").update(owner=7)
    assert (figures().due_activities, figures().kept_back) == (7, 1)
    assert figures().waiting_since == figures().oldest_due  # that of the others
    ActivityTask.objects.filter(owner=None).exclude(activity=fax.name).delete()
    assert (figures().kept_back, figures().waiting_since) == (1, None)


def test_a_key_that_runs_keeps_back_only_activities_with_this_key(settings: Any) -> None:
    settings.TEMPORALEX = {**getattr(settings, "TEMPORALEX", {}), "QUEUES": {"kept": {"concurrency_per_key": 1}}}
    with replaced_limit(fax.name):
        sent("a", "a", "b")
        ActivityTask.objects.filter(pk=ActivityTask.objects.filter(line__endswith="a").values("pk")[:1]).update(owner=7)

        assert (figures().due_activities, figures().kept_back) == (2, 1)


def test_a_rate_that_is_used_up_keeps_its_activities_back() -> None:
    sent("a", "b")
    assert figures().kept_back == 0
    Limit.objects.create(name=f"activity:{fax.name}", starts=[[timezone.now().timestamp(), 2]])
    assert (figures().due_activities, figures().kept_back, figures().waiting_since) == (2, 2, None)


def test_many_activities_behind_a_limit_do_not_hide_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "MAX_COUNT", 2)
    sent("a", "b", "c")
    ActivityTask.objects.filter(line__endswith="a").update(owner=7)
    told()
    assert figures().waiting_since == ActivityTask.objects.filter(activity=mail.name).earliest("due_at").due_at


def test_thousands_of_keys_are_one_short_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "MAX_COUNT", 1_500)
    sent("a")
    told()
    row = ActivityTask.objects.get(activity=fax.name)
    ActivityTask.objects.filter(pk=row.pk).update(owner=7)
    copies = []
    for number in range(1_500):
        row.pk, row.seq, row.line, row.owner = None, 1_000 + number, f"a:{fax.name}\n{number}", None
        copies.append(copy(row))
    ActivityTask.objects.bulk_create(copies)

    assert figures().kept_back > 1_000
    assert figures().waiting_since == ActivityTask.objects.filter(activity=mail.name).earliest("due_at").due_at


@activity(name="kept.letter", queue="kept-apart", concurrency=1)
def letter() -> int:
    return 1


class Letter(Workflow):
    """Sends a letter."""

    name = "kept.Letter"

    async def run(self, args: Any) -> Any:
        return Ok(await letter())


def test_each_of_several_queues_has_figures_of_its_own() -> None:
    sent("a", "b")
    Letter.start(None)
    Letter.start(None)
    run_until_idle(queues=["default"])
    ActivityTask.objects.filter(pk=ActivityTask.objects.filter(activity=letter.name).values("pk")[:1]).update(owner=7)

    found = {row.queue: (row.due_activities, row.kept_back) for row in queue_figures(["kept", "kept-apart", "other"])}

    assert found == {"kept": (2, 0), "kept-apart": (1, 1), "other": (0, 0)}
