"""Search attributes and tags on the tables: rows beside runs, found by an index, and the same over every face."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.db.models import DecimalField, F
from django.db.models.functions import Cast
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from temporalex_django import ContinueAsNew, NoReply, Ok, Stop, Workflow, api
from temporalex_django.authoring.run_filters import parse_conditions
from temporalex_django.models import Instance, SearchAttribute
from temporalex_django.models.states import WorkflowStateQuerySet
from temporalex_django.operations.read.run_filters import apply_filters
from temporalex_django.testing import drain
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"


class Invoicing(Workflow):
    """Has a total that its messages change."""

    name = "test.Invoicing"
    search_attributes = {"total": Decimal, "customer": str, "due": date, "sent": datetime, "marks": list[str], "big": bool}  # fmt: skip

    async def run(self, args: Any) -> Any:
        def add(payload: Any, state: int) -> Any:
            api.set_search_attributes({"total": state + payload, "big": state + payload > 1000})
            return NoReply(state + payload)

        total = await api.phase(
            0, signal={"add": add, "go": lambda _, state: Stop(state)}, update={"fine": lambda _, state: NoReply(state)}
        )
        return ContinueAsNew("again") if args is None else Ok(total)


class Unsearched(Workflow):
    name = "test.Unsearched"

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


def rows() -> list[tuple[Any, ...]]:
    found = SearchAttribute.objects.order_by("run_id", "name", "place")
    return [*found.values_list("run__status", "name", "place", "text", "number", "moment")]


def test_the_rows_beside_a_run_follow_it_to_its_end():
    run = Invoicing.start(
        id="i-1",
        search_attributes={"customer": "ann", "due": date(2026, 3, 1), "marks": ["a", "b"], "total": 5},
        tags=["x"],
    )
    drain()
    assert rows() == [
        ("waiting", "customer", 0, "ann", None, None),
        ("waiting", "due", 0, None, None, datetime(2026, 3, 1, tzinfo=UTC)),
        ("waiting", "marks", 0, "a", None, None),
        ("waiting", "marks", 1, "b", None, None),
        ("waiting", "total", 0, None, Decimal(5), None),
    ]
    assert set(SearchAttribute.objects.values_list("workflow", flat=True)) == {"test.Invoicing"}
    run.signal("add", 1200)
    run.signal("go")
    drain()
    again = [row[1:5] for row in rows() if row[0] == "waiting"]
    assert again == [row[1:5] for row in rows() if row[0] == "continued_as_new"]
    assert ("total", 0, None, Decimal(1200)) in again
    assert [handle.id for handle in Invoicing.list(attributes={"total__gt": 1000, "customer": "ann"})] == ["i-1"]
    assert Instance.objects.get(workflow_id="i-1", status="waiting").tags == ["x"]
    run.terminate()
    run.delete()
    assert rows() == []


def test_an_index_finds_what_two_conditions_leave():
    """Each condition is a probe of an index of the side table; the row that turns rewrite is not asked."""
    for n in range(30):
        Invoicing.start(id=f"i-{n}", search_attributes={"total": n, "customer": f"c{n % 3}"})
    asked = apply_filters(
        Instance.objects.filter(workflow=Invoicing.name),
        {"attributes": parse_conditions(Invoicing, {"total__gt": 27, "customer": "c2"})},
    ).order_by("-id")
    assert [run.workflow_id for run in asked.all()] == ["i-29"]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("set local enable_seqscan = off")
            cursor.execute("set local enable_bitmapscan = off")
    plan = asked.all()[:50].explain()
    assert "temporalex_search_" in plan or "sqlite_autoindex_temporalex_search_attribute" in plan, plan
    assert not re.search(r"(Seq Scan on|^SCAN) temporalex_(search_attribute|instance)", plan, re.MULTILINE), plan


def test_conditions_on_one_attribute_are_one_join():
    for n in range(6):
        Invoicing.start(id=f"i-{n}", search_attributes={"total": n, "customer": f"c{n % 2}", "marks": ["a", "ab"]})

    def asked(**conditions: Any) -> Any:
        return apply_filters(Instance.objects.all(), {"attributes": parse_conditions(Invoicing, conditions)})

    several = asked(total__gt=0, total__gte=2, total__lt=5, total__lte=4, customer="c0", customer__prefix="c")
    assert {run.workflow_id for run in several} == {"i-2", "i-4"}
    assert str(several.query).count(" JOIN ") == 2
    # A prefix can fit two texts of a list, so it is no join.
    listed = asked(marks="a", marks__prefix="a", total=3)
    assert [run.workflow_id for run in listed] == ["i-3"]
    assert (str(listed.query).count(" JOIN "), str(listed.query).count("EXISTS")) == (2, 1)


def test_who_has_none_pays_nothing():
    def statements(run: Any) -> list[str]:
        with CaptureQueriesContext(connection) as asked:
            run()
        return [query["sql"] for query in asked.captured_queries]

    started = statements(lambda: Unsearched.start(id="u"))
    turned = statements(lambda: (Unsearched.handle("u").signal("go"), drain()))
    assert not [sql for sql in [*started, *turned] if "temporalex_search_attribute" in str(sql)]


class Invoice(Workflow):
    """What ``docs/howto/search.md`` asks for."""

    name = "test.InvoiceOfTheDocs"
    search_attributes = {"total": Decimal, "phase": str, "customer": str}
    stored = {"total": Decimal}

    async def run(self, args: Any) -> Any:
        total = Decimal(args["total"])
        api.publish_state({"total": args["total"]})
        api.set_search_attributes({"total": total, "phase": args["phase"]})
        return Ok(await api.wait_for_signal("approved"))


def test_the_three_questions_of_the_docs_are_a_query_each():
    """They are run as they stand on the page: the objects are users here, whose first name is their total."""
    make = get_user_model().objects.create_user
    ann, bob = (make(name, first_name=total) for name, total in (("ann", "1200.5"), ("bob", "5")))
    for n, (owner, total, phase) in enumerate(
        [(ann, "1200.50", "approval"), (bob, "1500", "approval"), (ann, "1300", "paid"), (bob, "5.00", "approval")]
    ):
        run = Invoice.start(
            {"total": total, "phase": phase},
            id=f"q-{n}",
            subject=owner,
            search_attributes={"customer": owner.username},
        )
    drain()
    Invoice.handle("q-1").signal("approved")
    drain()
    page = (Path(__file__).resolve().parents[3] / "docs" / "howto" / "search.md").read_text(encoding="utf-8")
    block = page.partition("## Three questions")[2].partition("## ")[0]
    questions = [
        line.strip() for line in block.splitlines() if line.startswith("    ") and not line.strip().startswith("#")
    ]
    assert len(questions) == 3

    class Order:
        objects = WorkflowStateQuerySet(get_user_model()).annotate(
            total=Cast("first_name", DecimalField(max_digits=20, decimal_places=6))
        )

    found = []
    for question in questions:
        with CaptureQueriesContext(connection) as asked:
            answer = eval(question, {"Invoice": Invoice, "Order": Order, "F": F, "customer": ann})
            found.append([one.pk if hasattr(one, "pk") else one.id for one in answer])
        assert (
            len([query for query in asked.captured_queries if "content_type" not in query["sql"].split("WHERE")[0]])
            == 1
        )
    assert found == [["q-0"], ["q-2", "q-0"], [ann.pk]]
    assert run.describe().search_attributes == {"customer": "bob", "total": Decimal("5.00"), "phase": "approval"}


def test_rest_starts_with_them_shows_them_and_lists_by_them():
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))
    body = {"workflow": Invoicing.name, "id": "r-1", "tags": ["mine"]}
    given = {"total": "1200.50", "customer": "a \"b\" 'c'", "due": "2026-03-01", "sent": "2026-03-01T12:00:00+01:00", "big": True}  # fmt: skip
    answer = client.post("/api/instances/", {**body, "search_attributes": given}, format="json")
    assert answer.status_code == 201, answer.content
    said = json.loads(answer.content)["search_attributes"]
    assert said == {**given, "sent": "2026-03-01T11:00:00+00:00"}
    assert answer.json()["tags"] == ["mine"]
    Invoicing.start(id="r-2", search_attributes={"total": 3})

    def listed(attributes: Any, workflow: str | None = Invoicing.name) -> Any:
        asked = {"attributes": attributes if isinstance(attributes, str) else json.dumps(attributes)}
        found = client.get("/api/instances/", {**asked, **({} if workflow is None else {"workflow": workflow})})
        if found.status_code != 200:
            assert found.status_code == 400, found.content
            return found.json()["errors"]["attributes"][0]
        return [run["id"] for run in found.json()["results"]]

    assert listed({"total__gt": "1000", "customer__prefix": 'a "b'}) == ["r-1"]
    assert listed({"total__lt": 1200.5, "total__gt": 2}) == ["r-2"]
    assert listed({"due__lte": "2026-03-01", "sent": "2026-03-01T11:00:00Z"}) == ["r-1"]
    assert listed({"big": "true"}) == ["r-1"]
    assert listed({}) == ["r-2", "r-1"]
    assert "Set the Workflow filter to the class" in listed({"total": 1}, None)
    assert "no workflow 'Nobody'" in listed({"total": 1}, "Nobody")
    assert "Enter a JSON object" in listed("{")
    assert "did you mean total__gt" in listed({"totl__gt": 1})
    assert "total__gt must be a number, not 'x'" in listed({"total__gt": "x"})
    assert "must be a mapping of attributes" in listed("[1]")
    assert "Enter a JSON object" in listed('{"total": 1e99999999999999999999}')
    assert "years 2 to 9998 in UTC" in listed({"sent": "9999-12-31T23:00:00-05:00"})
    Invoicing.start(id="R-3")
    for asked, found in [
        ({"id_prefix": "r-"}, ["r-2", "r-1"]),
        ({"id_prefix": "R"}, ["R-3"]),
        ({"id_prefix": " r"}, []),
        ({"created_after": "0002-01-01T00:00:00Z", "id_prefix": "R"}, ["R-3"]),
        ({"created_before": "9998-12-31T23:59:59Z", "id_prefix": "R"}, ["R-3"]),
        (
            {"closed_after": "9999-12-31T23:00:00-05:00"},
            {"closed_after": ["Enter a time in the years 2 to 9998 in UTC."]},
        ),
    ]:
        answer = client.get("/api/instances/", asked).json()
        assert (answer["errors"] if "errors" in answer else [run["id"] for run in answer["results"]]) == found, asked

    wanted = {"workflow": Invoicing.name, "attributes": json.dumps({"total__gt": 1000, "customer__prefix": "a"})}
    job = client.post("/api/bulk/", {"action": "pause", "filter": wanted, "reason": "a look"}, format="json")
    assert (job.status_code, job.json()["total"]) == (201, 1), job.content

    for wrong, about in [
        ({"search_attributes": {"totl": 1}}, "no search attribute 'totl' is declared"),
        ({"search_attributes": {"total": "x"}}, "search attribute total must be a number, not 'x'"),
        ({"search_attributes": {"customer": 5}}, "customer must be a string"),
        ({"search_attributes": {"sent": "9999-12-31T23:00:00-05:00"}}, "years 2 to 9998 in UTC"),
        ({"tags": [""]}, "tags"),
    ]:
        refused = client.post("/api/instances/", {"workflow": Invoicing.name, **wrong}, format="json")
        assert refused.status_code == 400, refused.content
        assert about in refused.content.decode().replace('\\"', '"')
    assert Instance.objects.count() == 3


def test_commands_start_with_them_and_list_by_them(capsys):
    def said(*arguments: str) -> str:
        call_command("temporalex", *arguments)
        return capsys.readouterr().out

    said(
        *("start", Invoicing.name, "--id", "c-1", "--tag", "mine", "--attribute", "total=12.50"),
        *("--attribute", "marks=a", "--attribute", "marks=b=c", "--attribute", "customer='; drop table"),
    )
    assert Invoicing.handle("c-1").describe().search_attributes == {
        "total": Decimal("12.50"),
        "marks": ["a", "b=c"],
        "customer": "'; drop table",
    }
    shown = said("describe", "c-1")
    assert "total=12.50" in shown and "mine" in shown
    assert json.loads(said("describe", "c-1", "--json"))["run"]["search_attributes"]["total"] == "12.50"
    asked = '{"total__gt": 12, "marks": "b=c"}'
    (line,) = said("list", "--json", "--workflow", Invoicing.name, "--attributes", asked).splitlines()
    assert json.loads(line)["id"] == "c-1"
    for arguments, about in [
        (("start", Invoicing.name, "--attribute", "total"), "--attribute total is not a NAME=VALUE pair"),
        (("start", Invoicing.name, "--attribute", "totl=5"), "no search attribute 'totl'"),
        (("list", "--attributes", asked), "Set the Workflow filter to the class"),
        (("list", "--workflow", Invoicing.name, "--attributes", '{"totl": 1}'), "did you mean total"),
    ]:
        with pytest.raises(CommandError, match=re.escape(about)):
            call_command("temporalex", *arguments)


def test_the_search_box_of_the_console_takes_conditions_of_the_chosen_class():
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root"))
    for n, customer in enumerate(["ann", "<b>", "ann"]):
        Invoicing.start(id=f"a-{n}", search_attributes={"total": n, "customer": customer})
    Unsearched.start(id="u-1")

    def page(expected: int = 200, /, **asked: str) -> tuple[set[str], str]:
        found = client.get(f"{RUNS}console/runs/?{urlencode(asked)}")
        assert found.status_code == expected, found
        text = found.content.decode()
        return set(re.findall(r"/console/runs/[0-9a-f-]{36}/[^>]*>([^<]+)<", text)), text

    runs, text = page(workflow=Invoicing.name)
    assert (len(runs), "or total&gt;=1000" in text or "or total>=1000" in text) == (3, True)
    assert page(workflow=Invoicing.name, q="customer=ann")[0] == {"a-0", "a-2"}
    assert page(workflow=Invoicing.name, q="total > 1", attributes='{"customer": "ann"}')[0] == {"a-2"}
    assert page(workflow=Invoicing.name, q="customer=<b>")[0] == {"a-1"}
    for asked, said in [
        ({"attributes": '{"total": 1}'}, "Set the Workflow filter to the class"),
        ({"workflow": Invoicing.name, "q": "totl=1"}, "did you mean total?"),
        ({"workflow": Invoicing.name, "q": "total=<x>"}, "must be a number, not"),
        ({"workflow": Invoicing.name, "attributes": "{"}, "Enter a JSON object"),
        ({"workflow": Invoicing.name, "attributes": '{"total": 1e99999999999999999999}'}, "Enter a JSON object"),
        ({"workflow": Invoicing.name, "q": "sent=0001-01-01T00:00+01:00"}, "years 2 to 9998"),
        *(({name: "\0"}, "printable characters") for name in ("workflow", "queue", "status", "tag", "version")),
    ]:
        runs, text = page(400, **asked)
        assert (runs, said in text, "<x>" in text) == (set(), True, False), asked
    one = Instance.objects.get(workflow_id="a-2")
    shown = text_of(client, one.pk)
    assert "Search attributes" in shown
