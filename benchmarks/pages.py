"""``pages``: each page of the admin and each list of the REST API over many runs, with its statements."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from benchmarks.measures import percentile

GOAL_MS: Final = 150
_ROUNDS: Final = 5
_COUNTED: Final = 501
#: A slower page is cancelled, and reported as such.
_STATEMENT_MS: Final = 4_000
_LONG_ENOUGH_MS: Final = 1_000


def run(runs: int) -> dict[str, Any]:
    """Measure milliseconds (median and best of five, and those of the database) and statements about our tables.

    If the database takes a third of the goal or more, the figures have the plan of its slowest statement.
    """
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client

    from benchmarks.million import build

    began = time.perf_counter()
    built = build(runs)
    seconds = time.perf_counter() - began
    users = get_user_model().objects
    with connection.cursor() as cursor:
        cursor.execute(f"set statement_timeout = {_STATEMENT_MS}")
    found: dict[str, Any] = {
        "runs": runs,
        "built_in_s": round(seconds, 1),
        "megabytes": built["megabytes"],
        "goal_ms": GOAL_MS,
    }
    everybody = users.create_superuser("operator")
    tenant = users.create_user("t07", is_staff=True)
    _permit(tenant)
    for who, user in (("all", everybody), ("tenant", tenant)):
        client = Client()
        client.force_login(user)
        found[who] = {}
        for name, address in _addresses(built["long_one"], who):
            page = found[who][name] = _measured(client, address)
            sys.stderr.write(f"{who} {name}: {page.get('ms', '–')} ms, {page.get('statements', '–')} statements\n")
    found["questions"] = {name: _planned(asked) for name, asked in _questions()}
    found["lists"] = {name: _planned(asked) for name, asked in _lists(tenant)}
    found["inbox"] = {name: _planned(asked) for name, asked in _inboxes()}
    found["missed"] = [
        f"{who} {name}"
        for who in ("all", "tenant")
        for name, page in found[who].items()
        if page.get("ms", GOAL_MS) >= GOAL_MS
    ]
    return found


def _permit(user: Any) -> None:
    from django.contrib.auth.models import Permission

    user.user_permissions.set(
        Permission.objects.filter(codename__in=("view_instance", "view_payload", "view_operatoraction", "view_worker"))
    )


def _addresses(long_one: str, who: str) -> Iterator[tuple[str, str]]:
    lists, one, api = (
        "/admin/temporalex_django/instance/",
        f"/admin/temporalex_django/instance/{long_one}/change/",
        "/api/instances/",
    )
    console = f"{lists}console/"
    yield "admin list", lists
    for query in ("q=t07-order-9", "q=t42", "q=nothing-begins-so", "p=5"):
        yield f"admin list ?{query}", f"{lists}?{query}"
    yield "console overview", console
    yield "console list", f"{console}runs/"
    for query in (
        "stuck=true", "blocked=true", "status=pending,running,waiting", "status=completed,failed", "closed_after=-24h",
        *(f"status={name}" for name in ("pending", "running", "waiting", "completed", "failed", "cancelled", "terminated", "timed_out", "continued_as_new")),
        *(f"waits={name}" for name in ("message", "activity", "timer", "child")),
        *(f"workflow={name}" for name in ("One", "Long")),
        "version=1", "version=2", "created_after=-24h", "created_after=-30d", "queue=mail",
        "q=t07-order-9", "q=t07-order-94", "q=t42", "q=nothing-begins-so", "p=5",
        "workflow=Long&status=failed", "queue=mail&status=waiting", "tag=seldom", "tag=web",
        *(f"order={order}" for order in ("started", "closed", "-closed", "due", "-due")),
    ):  # fmt: skip
        yield f"console list ?{query}", f"{console}runs/?{query}"
    yield "console inbox", "/admin/temporalex_django/instance/console/desk/"
    if who == "all":
        yield "console desk", "/admin/temporalex_django/instance/console/desk/?whose=all"
        for name in ("", "?p=1", "?p=50", "?p=100"):
            yield f"admin run{' ' + name if name else ''}", one + name
        yield "console workers", f"{console}workers/"
        yield "admin audit", "/admin/temporalex_django/operatoraction/"
    yield "rest inbox", "/api/human-tasks/"
    yield "rest inbox, all", "/api/human-tasks/?all=true"
    yield "rest list", api
    for query in (
        *(f"status={name}" for name in ("pending", "running", "waiting", "completed", "failed", "timed_out", "failed,cancelled,terminated")),
        "blocked=true", "blocked=false", "workflow=One", "workflow=Long", "version=2", "queue=mail",
        "id_prefix=t07-order-94", "id_prefix=t42", "id_prefix=nothing", "subject=auth.user:4242", "subject=auth.user:nobody",
        *(f"{what}_{when}={quote(at)}" for what in ("created", "closed") for when in ("after", "before") for at in ("2020-01-01T00:00:00Z", "2026-06-01T00:00:00Z", "2099-01-01T00:00:00Z")),
        "workflow=Long&status=failed", "limit=200", "tag=seldom", "tag=web",
        *(f"order={order}" for order in ("started", "closed", "-closed", "due", "-due")),
    ):  # fmt: skip
        yield f"rest list ?{query}", f"{api}?{query}"
    if who == "all":
        for name in (
            "",
            "events/",
            "events/?after=9000",
            "events/?limit=1000",
            "timeline/",
            "timeline/?after=9000",
            "timeline/?limit=1000",
            "children/",
            "activities/",
            "messages/",
            "operations/",
            "result/",
        ):
            yield f"rest run {name}".strip(), f"{api}{long_one}/{name}"


def _measured(client: Any, address: str) -> dict[str, Any]:
    from django.db import DatabaseError, connection
    from django.test.utils import CaptureQueriesContext

    try:
        answer = client.get(address)  # first do the work that a process does only once
        times: list[float] = []
        while len(times) < _ROUNDS and sum(times) < _LONG_ENOUGH_MS:
            began = time.perf_counter()
            answer = client.get(address)
            times.append((time.perf_counter() - began) * 1000)
        with CaptureQueriesContext(connection) as asked:
            client.get(address)
    except DatabaseError as exc:
        return {"plan": f"interrupted: {exc}"}
    if answer.status_code not in (200, 202):
        return {"plan": f"answered {answer.status_code}: {answer.content[:200]!r}"}
    own = [
        query
        for query in asked.captured_queries
        if "temporalex_" in query["sql"] and "django_session" not in query["sql"]
    ]
    page: dict[str, Any] = {
        "ms": round(percentile(times, 0.5), 1),
        "best_ms": round(min(times), 1),
        "database_ms": round(1000 * sum(float(query["time"]) for query in asked.captured_queries)),
        "statements": len(own),
    }
    if page["database_ms"] > GOAL_MS / 3:
        worst = max(own, key=lambda query: float(query["time"]))
        page["plan"] = [worst["sql"], *_plan(worst["sql"])]
    return page


def _questions() -> Iterator[tuple[str, Any]]:
    """Yield the questions of ``docs/howto/search.md``, with users as the objects."""
    from django.contrib.auth import get_user_model

    from benchmarks.app.workflows import Parked
    from temporalex_django.authoring.run_filters import parse_conditions
    from temporalex_django.models import Instance
    from temporalex_django.models.states import WorkflowStateQuerySet
    from temporalex_django.operations.read.run_filters import apply_filters, current_runs

    people: WorkflowStateQuerySet[Any] = WorkflowStateQuerySet(get_user_model())
    joined = people.with_workflow_state("phase", "total")
    one = people.get(username="customer-4242")
    runs = current_runs(Instance.objects.filter(workflow="Parked")).order_by("-id")
    yield (
        "a page of those over 1,000 that wait for approval",
        joined.filter(workflow_phase="approval", workflow_total__gt=1000)[:50],
    )
    yield "a page with what their runs have published", joined.order_by("username")[:50]
    yield "runs of one object", apply_filters(runs, {"subject": one})
    for name, asked in (
        ("runs of one customer over 1,000", {"customer": "customer-4241", "total__gt": 1000}),
        ("runs of one customer over none", {"customer": "customer-4241", "total__lt": 0}),
        ("a page of runs over 1,000, of many customers", {"customer__prefix": "customer-4", "total__gt": 1000}),
    ):
        yield name, apply_filters(runs, {"attributes": parse_conditions(Parked, asked)})[:50]
    over = {"attributes": parse_conditions(Parked, {"total__gt": 1000})}
    yield "a page of runs over 1,000 that wait for a message", apply_filters(runs, {**over, "waits": "message"})[:50]
    yield (
        "all runs of one customer, whatever they are",
        apply_filters(runs, {"attributes": parse_conditions(Parked, {"customer": "customer-4241"})}),
    )
    yield "all whose total differs", people.with_workflow_state("total").exclude(workflow_total=7)


def _lists(tenant: Any) -> Iterator[tuple[str, Any]]:
    """Yield queries for as many ids of a list as the admin counts: by columns that turns rewrite, by tags, in order."""
    from temporalex_django.access import runs_for
    from temporalex_django.authoring.run_filters import NEWEST_FIRST
    from temporalex_django.models import Instance
    from temporalex_django.operations.read.run_filters import FILTERS, limit_to_range, order_runs

    everybody, his = Instance.objects.all(), runs_for(tenant, alias="default")
    assert his is not None
    for who, runs in (("", everybody), (", a tenant's", his)):
        for name, value in (
            *(("status", [status]) for status in ("pending", "running", "waiting")),
            *(("waits", kind) for kind in ("message", "activity", "timer", "child")),
            ("tag", "seldom"),
            ("tag", "web"),
        ):
            said = value if isinstance(value, str) else value[0]
            yield f"{name} {said}{who}", order_runs(FILTERS[name](runs, value), NEWEST_FIRST).values("pk")[:_COUNTED]
    for order in ("-closed", "closed", "due", "-due"):
        found = limit_to_range(order_runs(everybody, order), order, None, rows=_COUNTED)
        yield f"in the order {order}", found.values("pk")[:_COUNTED]


def _inboxes() -> Iterator[tuple[str, Any]]:
    """Yield a page of the inbox of a user who is asked in two of ten of the 10,000 open human tasks, and of others."""
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Group
    from django.test import override_settings

    from temporalex_django.operations.human_tasks.inbox import inbox

    users = get_user_model().objects
    clerk, nobody = (users.get(username=f"customer-{number}") for number in (1002, 1003))
    tenant, everybody = users.create_user("t75"), users.get(username="operator")
    groups = {number: Group.objects.get_or_create(name=f"g{number}")[0] for number in (15, 16)}
    clerk.groups.set(groups.values())
    tenant.groups.add(groups[15])
    with override_settings(TEMPORALEX={}):  # no tenants
        for name, user in (
            ("of two groups", clerk),
            ("of nobody in particular", nobody),
            ("of a superuser", everybody),
        ):
            yield name, inbox(user)[:51]
    yield "of a tenant", inbox(tenant)[:51]


def _planned(asked: Any) -> dict[str, Any]:
    lines = asked.explain(analyze=True, buffers=True).splitlines()
    return {"ms": float(lines[-1].split()[-2]), "plan": lines}


def _plan(sql: str) -> list[str]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"explain (analyze, buffers) {sql}")
        return [row[0] for row in cursor.fetchall()]
