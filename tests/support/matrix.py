"""Who asks in the permission matrix, and the runs that he is after."""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission
from django.core.management import call_command
from django.db.models import QuerySet
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import (
    Approval,
    Done,
    GraphWorkflow,
    Ok,
    RetryPolicy,
    Stop,
    Unique,
    VersionedWorkflow,
    Workflow,
    WorkflowHandle,
    activity,
)
from temporalex_django import api as api_
from temporalex_django.access import AccessPolicy
from temporalex_django.models import (
    Chain,
    EndedTask,
    EnqueuedTask,
    HistoryEvent,
    HumanTask,
    Instance,
    Message,
    OperatorAction,
    Schedule,
    Worker,
)
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.schedules.definition import parse_definition
from temporalex_django.operations.schedules.operations import BackfillSchedule, PauseSchedule
from temporalex_django.operations.schedules.save import SaveSchedule
from tests.support.client_flows import Basket, drain
from tests.support.people import stored

APP = "temporalex_django"
#: Everybody but the one with the right permission is to be refused, each in the way of the face.
ASKING = ("anonymous", "no permission", "view only", "right", "other tenant")

POLICY = f"{__name__}.Tenants"


class Tenants(AccessPolicy):
    """All runs are of the tenant *red*: of ``red-ann``, as their ids begin, and not of ``blue-ann``."""

    def narrow(self, user: Any, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        return runs.filter(workflow_id__startswith=user.username.partition("-")[0])

    def narrow_schedules(self, user: Any, schedules: QuerySet[Schedule]) -> QuerySet[Schedule]:
        return schedules.filter(name__startswith=user.username.partition("-")[0])


@activity(name="matrix.refused", retry=RetryPolicy(initial_interval=3600.0))
def refused(amount: int) -> int:
    raise ConnectionError("refused")


class Errand(Workflow):
    """Has an activity that fails (number 1), and a timer (number 2)."""

    name = "test.MatrixErrand"
    unique = Unique(key="rederrand")

    async def run(self, args: Any) -> Any:
        return Ok(await api_.parallel([refused(5), api_.sleep(3600)]))


def lost(payload: Any, state: Any) -> Any:
    raise KeyError("vat")


class Astray(Workflow):
    """Its signal fails: it has a failed message."""

    name = "test.MatrixAstray"
    unique = Unique(key="redastray")

    async def run(self, args: Any) -> Any:
        return Ok(await api_.phase(None, signal={"lost": lost, "stop": lambda payload, state: Stop(state)}))


decision = Approval(key="decision")


class Choice(GraphWorkflow):
    name = "test.MatrixChoice"
    unique = Unique(key="redchoice")
    initial = decision
    transitions = {(decision, "approved"): Done, (decision, "rejected"): Done}


class Question(Workflow):
    """Asks everybody who could ask in the matrix."""

    name = "test.MatrixQuestion"
    unique = Unique(key="redquestion")

    async def run(self, args: Any) -> Any:
        asked = ["red-nobody", "red-viewer", "red-right", "blue-ann"]
        return Ok((await api_.approval("Shall we?", users=asked)).outcome)


class Moving(VersionedWorkflow):
    """Runs of the old version, which is started by itself."""

    name = "test.MatrixMoving"
    current = 1

    class V1(GraphWorkflow):
        unique = Unique(key="redmoving")
        initial = decision
        transitions = {(decision, "approved"): Done, (decision, "rejected"): Done}

    class V2(GraphWorkflow):
        version = 2
        unique = Unique(key="redmoving")
        initial = decision
        transitions = {(decision, "approved"): Done, (decision, "rejected"): Done}

    versions = {1: V1, 2: V2}


def _basket() -> WorkflowHandle[Any]:
    return Basket.start(id="red-1")


def _ended() -> WorkflowHandle[Any]:
    basket = Basket.start(id="red-1")
    drain()
    basket.signal("checkout")
    return basket


def _updated() -> WorkflowHandle[Any]:
    basket = Basket.start(id="red-1")
    basket.update("add", 1, id="known")
    return basket


def _acted() -> WorkflowHandle[Any]:
    basket = Basket.start(id="red-1")
    basket.terminate("enough")
    return basket


def _paused() -> WorkflowHandle[Any]:
    basket = Basket.start(id="red-1")
    basket.pause()
    return basket


def _failed() -> WorkflowHandle[Any]:
    astray = Astray.start(value="1")
    astray.signal("lost", 5, id="lost-1")
    return astray


def _blocked() -> WorkflowHandle[Any]:
    basket = Basket.start(id="red-1")
    drain()
    mark = {"code": "crash", "error": "it ends processes", "since": timezone.now().isoformat(), "attempt": 3}
    Instance.objects.filter(pk=basket.run_id).update(blocked=mark)
    Chain.objects.filter(run_id=basket.run_id).update(failed_tries=3, crashes=3, due_at=None)
    return basket


#: The schedule of the tenant *red*, and what one of its backfills may cover.
NIGHTLY = "red-nightly"
JANUARY = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC))


def nightly(name: str = NIGHTLY) -> dict[str, Any]:
    """The definition of a schedule of people, in plain values."""
    return {"name": name, "workflow": Basket.name, "cron": "30 2 * * *", "tz": "Europe/Berlin"}


def _schedule() -> WorkflowHandle[Any]:
    SaveSchedule(parse_definition(nightly()), create=True).execute()
    return _basket()


def _paused_schedule() -> WorkflowHandle[Any]:
    handle = _schedule()
    PauseSchedule(NIGHTLY).execute()
    return handle


def _backfill() -> WorkflowHandle[Any]:
    handle = _schedule()
    BackfillSchedule(NIGHTLY, start=JANUARY[0], end=JANUARY[1], per_minute=1).execute()
    return handle


#: What a row may be about: a run of the tenant *red*.
RUNS: dict[str, Callable[[], WorkflowHandle[Any]]] = {
    "basket": _basket,
    "ended": _ended,
    "updated": _updated,
    "acted": _acted,
    "paused": _paused,
    "blocked": _blocked,
    "errand": lambda: Errand.start(value="1"),
    "graph": lambda: Choice.start("1"),
    "failed": _failed,
    "moving": lambda: Moving.start("1"),
    "question": lambda: Question.start(value="1"),
    "schedule": _schedule,
    "paused schedule": _paused_schedule,
    "backfill": _backfill,
}


@dataclass(frozen=True)
class Row:
    """One entry of one face.

    ``do`` gets what the table says and does it to the run that ``RUNS[run]`` makes. ``takes`` names
    all permissions that it takes (code names of ours, or ``app.codename``): none, and whoever is logged in may; None:
    nobody may. ``of_run``: it is about one run, which is not found for other tenants; what is not gives them what is
    theirs; one that ``acts`` there is refused. ``of_all``: it is about what serves all tenants, a worker, say: whoever
    has the permission may.
    """

    takes: tuple[str, ...] | None
    do: Callable[..., Any]
    run: str = "basket"
    of_run: bool = True
    acts: bool = False
    of_all: bool = False

    def user(self, asking: str) -> Any:
        """A user of that kind, who is staff; other tenants may do everything among their own runs."""
        match asking:
            case "anonymous":
                return AnonymousUser()
            case "no permission":
                return _staff("red-nobody")
            case "view only":
                return _staff("red-viewer", f"{APP}.view_instance")
            case "right":
                return _staff("red-right", *map(_full, self.takes or ()))
        other = _staff("blue-ann")
        other.user_permissions.set(Permission.objects.all())
        return type(other).objects.get(pk=other.pk)

    def may(self, asking: str) -> bool:
        """Whether somebody of that kind, of the tenant itself and logged in, is let through."""
        if self.takes is None or asking == "anonymous" or (asking == "other tenant" and not self.of_all):
            return False
        if asking == "other tenant":
            return True
        seen = {f"{APP}.view_instance"} if asking == "view only" else set()
        return asking == "right" or set(map(_full, self.takes)) <= seen

    def ready(self) -> WorkflowHandle[Any]:
        """The run, with nothing left to do for a worker."""
        handle = RUNS[self.run]()
        drain()
        return handle


def cases(rows: dict[str, Row]) -> list[Any]:
    """Each row with each person; ``make test`` leaves out most people of a row whose kind an earlier one has.

    Rows of one kind ask for permissions, or for none, in one way.
    """
    kinds: set[Any] = set()
    found = []
    for name, row in rows.items():
        kind = (bool(row.takes), row.of_run, row.of_all, row.acts)
        for asking in ASKING:
            repeats = kind in kinds and asking != "no permission"
            marks = [pytest.mark.only_in_all("row")] if repeats else []
            found.append(pytest.param(name, asking, marks=marks, id=f"{name}-{asking}"))
        kinds.add(kind)
    return found


def _full(permission: str) -> str:
    return permission if "." in permission else f"{APP}.{permission}"


def _staff(name: str, *permissions: str) -> Any:
    user = stored(name, *permissions)
    user.is_staff = True
    user.save()
    return user


def standing() -> tuple[Any, ...]:
    """All that an operation could change; what somebody was refused is noted elsewhere."""
    done = OperatorAction.objects.filter(denied=False).exclude(action="view_payload")
    return (
        [*Instance.objects.order_by("pk").values_list("pk", "status", "version")],
        [*Chain.objects.order_by("pk").values_list("pk", "closed", "run_id", "due_at")],
        Message.objects.count(),
        HistoryEvent.objects.count(),
        [*HumanTask.objects.order_by("pk").values_list("pk", "closed_at", "claimed_by_key", "delegated")],
        [*Schedule.objects.order_by("pk").values()],
        done.count(),
    )


def objects() -> dict[str, Any]:
    """Keys of what the admin has pages of: the run, an action on it, a worker; the first of each."""
    there = {
        "run": Instance, "action": OperatorAction, "worker": Worker, "task": HumanTask, "enqueued": EnqueuedTask,
        "ended task": EndedTask, "schedule": Schedule,
    }  # fmt: skip
    found = {name: model._default_manager.order_by("pk").first() for name, model in there.items()}
    return {name: None if one is None else one.pk for name, one in found.items()}


def worker(*, drained: bool = False) -> Worker:
    """One that is there."""
    now = timezone.now()
    return Worker.objects.create(
        id=uuid.uuid4(), epoch=2 if drained else 1, kind="worker", host="h", pid=1, queues=[], workflows={}, started_at=now,
        beat_at=now, expires_at=now, drained_at=now if drained else None,
    )  # fmt: skip


def django_tasks() -> None:
    """One that waits, and one that has ended; a run of the tenant *red* has enqueued them."""
    now, ids, run = timezone.now(), (uuid.uuid4(), uuid.uuid4()), Instance.objects.order_by("pk").first()
    EnqueuedTask.objects.create(
        run_id=ids[0], seq=0, activity="task:shop.mail", call=b"[[], {}]", options=b"{}", queue="elsewhere",
        run_queue="elsewhere", scheduled_at=now, due_at=now, enqueued_by=run,
    )  # fmt: skip
    EndedTask.objects.create(
        id=ids[1], task="shop.mail", backend="default", queue="elsewhere", priority=0, status="FAILED",
        call=b"[[], {}]", options=b"{}", outcome=b"{}", attempts=1, enqueued_at=now, finished_at=now, enqueued_by=run,
    )  # fmt: skip


def api(user: Any) -> APIClient:
    """A client of REST."""
    client = APIClient(raise_request_exception=False)
    client.force_authenticate(user if user.is_authenticated else None)
    return client


def browser(user: Any) -> Client:
    """A client of the admin."""
    client = Client(raise_request_exception=False)
    if user.is_authenticated:
        client.force_login(user)
    return client


def command(*arguments: str) -> str:
    """What ``manage.py temporalex`` prints."""
    out = io.StringIO()
    call_command("temporalex", *arguments, stdout=out)
    return out.getvalue()


# -- addresses, and what is filled in ---------------------------------------------------------------------------------

#: Keys of things that there are not.
NOWHERE = {
    "run": uuid.uuid4(),
    "task": uuid.uuid4(),
    "action": 0,
    "worker": uuid.uuid4(),
    "drained worker": uuid.uuid4(),
    "switch": 0,
    "job": uuid.uuid4(),
    "stopped job": uuid.uuid4(),
    "schedule": 0,
    "message": uuid.uuid4(),
}


def filled(address: str, names: dict[str, Any]) -> str:
    """An address with what its route names."""
    for name, value in names.items():
        address = re.sub(rf"<(\w+:)?{name}>", str(value), address)
    assert "<" not in address, f"{address}: the row says nothing for what is left in it"
    return address


def written(value: Any) -> str:
    """What somebody types for it."""
    return value if isinstance(value, str) else json.dumps(value)


def token() -> str:
    """Goes with a form of the admin, which acts once."""
    return str(uuid.uuid4())


def patterns(found: list[Any]) -> Iterator[URLPattern]:
    """The routes among these, and those below them."""
    for one in found:
        if isinstance(one, URLResolver):
            yield from patterns(one.url_patterns)
        else:
            yield one


def console_pages(name: str, address: str) -> dict[str, str]:
    """The addresses of a route of the console, by what is behind its name in the matrix."""
    if name == "bulk":
        return {f" {a.name}": f"{address}?action={a.name}" for a in STEERING.values() if a.target_kind == "run"}
    if name == "do":
        return {f" {action}": address.replace("<slug:action>", action) for action in STEERING}
    return {"": address.replace("<slug:part>", "timeline")}


def whole(answer: Any) -> Any:
    """What was sent in parts."""
    return HttpResponse(b"".join(answer.streaming_content)) if answer.streaming else answer
