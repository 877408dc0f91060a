"""One thing done to many runs from the console: the page that says what it would do, and the page of the job."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client, override_settings

from temporalex_django.console import bulk
from temporalex_django.db import background_hooks
from temporalex_django.models import BulkItem, BulkJob, Instance, OperatorAction
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.operations.runs.control import Terminate
from tests.support import tenants
from tests.support.client_flows import Basket, drain

pytestmark = pytest.mark.django_db(transaction=True)

RUN = "/admin/temporalex_django/instance/"
RUNS = f"{RUN}console/runs/"
JOBS = f"{RUN}console/jobs/"


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def somebody(name: str, *codes: str) -> Client:
    user = get_user_model().objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codes))
    client = Client()
    client.force_login(user)
    return client


def baskets(*ids: str) -> list[str]:
    """Run ids."""
    made = [Basket.start(id=name).run_id for name in ids]
    drain()
    return made


def choose(name: str, ids: list[str], *, query: str = "") -> str:
    """The address to which the form of the list leads, with rows that are ticked, or with all that match."""
    if query:
        return f"{RUNS}bulk/?{query}&scope=all&action={name}"
    return f"{RUNS}bulk/?{urlencode({'scope': 'chosen', 'action': name, 'run': ids}, doseq=True)}"


def hidden(text: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', text)
    return found[1] if found else ""


def confirm(client: Client, address: str, **given: Any) -> Any:
    text = client.get(address).content.decode()
    return client.post(address, {"token": hidden(text, "token"), "newest": hidden(text, "newest"), **given})


def finished() -> None:
    while background_hooks.run_hooks("default"):
        pass


def statuses() -> dict[str, str]:
    return dict(Instance.objects.values_list("workflow_id", "status"))


def test_rows_are_chosen_looked_at_and_acted_on(admin: Client) -> None:
    runs = baskets("a", "<b>b", "c", "left")
    Basket.handle("c").terminate()
    audited = OperatorAction.objects.count()
    listed = admin.get(RUNS).content.decode()
    for label in ("Cancel…", "Terminate…", "Pause…", "Delete…", "Retry now…", "Fire now…", "Deliver again…"):
        assert label in listed

    address = choose("terminate", runs[:3])
    text = admin.get(address).content.decode()
    assert "The action can currently be applied to 2 of 3 selected runs." in text
    assert ">Terminate</button>" in text
    assert f"{Terminate.summary} {Terminate.effect}" in text
    assert "1: the run is already closed (Terminated)" in text
    assert (BulkJob.objects.count(), OperatorAction.objects.count()) == (0, audited)  # looking does nothing

    assert "This field is required" in confirm(admin, address).content.decode()  # it cannot be undone
    done = confirm(admin, address, reason="<i>spring</i> cleaning")
    job = BulkJob.objects.get()
    assert done["Location"] == f"{JOBS}{job.pk}/"
    page = admin.get(done["Location"]).content.decode()
    assert "0 of 3 finished" in page
    assert "Stop</button>" in page
    assert set(statuses().values()) == {"waiting", "terminated"}  # not in the request
    finished()

    page = admin.get(done["Location"]).content.decode()
    assert "3 of 3 finished" in page
    assert "Stop</button>" not in page
    assert "<dt>Not possible</dt><dd>0</dd>" in page  # c was terminated already, which is no problem
    assert "<dt>Already done</dt><dd>1</dd>" in page
    assert page.index("</svg> already done") < page.index("&lt;b&gt;b")  # where nothing was done comes first
    assert "tx-badge tx-failed" not in page
    assert "already closed" in page
    assert "<b>b" not in page
    assert "<i>spring" not in page
    assert f"{RUN}console/runs/{runs[0]}/" in page
    assert statuses()["left"] == "waiting"
    assert "Terminate: 3 runs" in admin.get(JOBS).content.decode()
    assert OperatorAction.objects.get(action="start_bulk").source == "admin"


def test_all_that_match_the_filters_are_chosen_and_none_that_was_started_since(admin: Client) -> None:
    baskets("a-1", "a-2", "b-1")
    address = choose("pause", [], query="q=a-")
    text = admin.get(address).content.decode()
    assert "The action can currently be applied to 2 of 2 selected runs." in text
    assert f'href="{RUNS}?q=a-"' in text  # the way back keeps the filters
    form = {"token": hidden(text, "token"), "newest": hidden(text, "newest")}
    baskets("a-3")
    admin.post(address, form)
    finished()
    assert set(Instance.objects.paused().values_list("workflow_id", flat=True)) == {"a-1", "a-2"}

    nothing = admin.get(choose("pause", [], query="stuck=true"))
    assert nothing["Location"] == f"{RUNS}?stuck=true"
    assert "None of these runs exists any more" in admin.get(nothing["Location"]).content.decode()
    assert "Select the runs first." in admin.get(choose("pause", []), follow=True).content.decode()


def test_the_list_offers_the_actions_of_the_person(admin: Client) -> None:
    baskets("a")
    assert 'value="terminate">' in admin.get(RUNS).content.decode()
    pausing = somebody("ann", "view_instance", "bulk_actions", "pause_instance").get(RUNS).content.decode()
    assert 'value="pause">' in pausing
    assert 'value="terminate">' not in pausing
    assert "choose an action" not in somebody("viewer", "view_instance").get(RUNS).content.decode()


def test_posted_twice_or_by_two_processes_it_is_one_job(admin: Client) -> None:
    address = choose("terminate", baskets("a"))
    text = admin.get(address).content.decode()
    form = {"token": hidden(text, "token"), "newest": hidden(text, "newest"), "reason": "once"}
    where = {admin.post(address, form)["Location"] for _ in range(2)}
    assert len(where) == 1
    assert (BulkJob.objects.count(), BulkItem.objects.count()) == (1, 1)


def test_a_form_does_what_it_was_made_for_and_nothing_else() -> None:
    (a, b), right = baskets("a", "b"), somebody("ann", "view_instance", "bulk_actions", "terminate_instance", "pause_instance")  # fmt: skip
    address = choose("terminate", [a])
    text = right.get(address).content.decode()
    form = {"token": hidden(text, "token"), "newest": hidden(text, "newest"), "reason": "enough"}
    for newest in ({}, {"newest": ""}, {"newest": "x"}):
        blind = right.post(address, {"token": form["token"], "reason": "enough", **newest})
        assert (blind.status_code, b"the runs that were shown" in blind.content) == (200, True)
    assert not BulkJob.objects.exists()
    assert right.post(address, form).status_code == 302
    for other, more in (
        (choose("terminate", [b]), {"newest": b}),
        (choose("pause", [a]), {}),
        (address, {"reason": "another one"}),
    ):
        refused = right.post(other, {**form, **more})
        assert (refused.status_code, b"another bulk job" in refused.content) == (409, True), other
        assert hidden(refused.content.decode(), "token") != form["token"]
    assert (BulkJob.objects.count(), BulkItem.objects.count()) == (1, 1)


def test_what_cannot_be_done_says_why_and_has_no_button(admin: Client) -> None:
    runs = baskets("a", "b", "c")
    address = choose("unpause", runs)
    text = admin.get(address).content.decode()
    assert "You cannot apply this action to any of these runs now." in text
    assert '<button type="submit" class="tx-primary' not in text
    with override_settings(TEMPORALEX={"BULK_LIMIT": 2}):
        address = choose("terminate", runs)
        assert "more than 2 runs" in admin.get(address).content.decode()
        refused = admin.post(address, {"token": "t", "reason": "r", "newest": runs[2]})
    assert refused.status_code == 409
    assert "more than 2 runs" in refused.content.decode()
    assert "Nothing was done." in refused.content.decode()
    assert not BulkJob.objects.exists()


def test_odd_addresses_and_methods(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = baskets("a")
    assert admin.get(choose("terminate", [run, "no-id"])).status_code == 404
    good = choose("terminate", [run])
    assert "1 of 1" in admin.get(good).content.decode()
    for odd in ("", "&run=", "&run=%C3%A4", "&scope=all&x=1", "&scope=all&stuck=x", "&scope=all&q=%00"):
        assert admin.get(f"{RUNS}bulk/?action=terminate{odd}").status_code in (302, 400, 404), odd
    for name in ("nothing", "signal", ""):
        assert admin.get(f"{RUNS}bulk/?action={name}&run={run}").status_code == 404
    assert admin.delete(good).status_code == 405
    monkeypatch.setattr(bulk, "MAX_CHOSEN", 3)
    many = admin.get(choose("terminate", baskets(*(f"m-{number}" for number in range(4)))))
    assert (many.status_code, "Select at most 3 runs" in many.content.decode()) == (400, True)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(get_user_model().objects.get(username="root"))
    assert strict.post(good, {"token": "t", "reason": "r"}).status_code == 403
    assert not BulkJob.objects.exists()
    for ref in ("x", run):
        for page in ("", "stop/", "resume/"):
            answer = admin.post(f"{JOBS}{ref}/{page}") if page else admin.get(f"{JOBS}{ref}/")
            assert answer.status_code in (302, 404)


def test_a_job_is_stopped_and_resumed_by_its_owner(admin: Client) -> None:
    runs = baskets("a", "b")
    ann, bob = (
        somebody("ann", "view_instance", "bulk_actions", "terminate_instance"),
        somebody("bob", "view_instance", "bulk_actions"),
    )
    address = confirm(ann, choose("terminate", runs), reason="enough")["Location"]
    stop, resume = f"{address}stop/", f"{address}resume/"
    assert bob.get(address).status_code == 404  # it is not his
    assert bob.post(stop).status_code == 404
    assert bob.get(JOBS).status_code == 200
    assert "Terminate" not in bob.get(JOBS).content.decode()
    assert ann.get(stop).status_code == 405
    assert BulkJob.objects.get().state == "running"

    assert "The job has been stopped" in ann.post(stop, {"reason": "wait"}, follow=True).content.decode()
    finished()
    assert set(statuses().values()) == {"waiting"}
    again = ann.post(stop, {}, follow=True).content.decode()
    assert "is Stopped, not running" in again
    assert "Resume</button>" in again
    assert admin.get(address).status_code == 200  # superusers see all jobs
    assert "The job will continue" in ann.post(resume, {}, follow=True).content.decode()
    finished()
    assert set(statuses().values()) == {"terminated"}
    assert OperatorAction.objects.get(action="stop_bulk").reason == "wait"


def test_who_may_not_is_told_why_and_offered_nothing() -> None:
    runs = baskets("red-1", "blue-1")
    viewer, some = somebody("red-viewer", "view_instance"), somebody("red-some", "view_instance", "bulk_actions")
    right = somebody("red-right", "view_instance", "bulk_actions", "terminate_instance")
    assert viewer.get(JOBS).status_code == 403
    OperatorAction.objects.all().delete()
    address = choose("terminate", runs)
    for client, wanted in ((viewer, "Can start bulk jobs"), (some, "Can terminate runs")):
        assert f"this requires the permission “{wanted}”" in client.get(address).content.decode()
        assert client.post(address, {"token": "t", "reason": "r"}).status_code == 403
    assert viewer.get(JOBS).status_code == 403
    assert OperatorAction.objects.filter(denied=True).count() == 3
    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        text = right.get(address).content.decode()
        assert "1 of 1" in text
        assert "blue" not in text
        page = confirm(right, address, reason="enough")["Location"]
        finished()
        assert statuses() == {"red-1": "terminated", "blue-1": "waiting"}
        BulkItem.objects.update(run_id=runs[1])  # as if it had become another tenant's since
        text = right.get(page).content.decode()
        assert "not available" in text
        assert "blue-1" not in text


def test_a_long_job_has_pages_and_costs_the_same(admin: Client, django_assert_max_num_queries: Any) -> None:
    job = StartBulk("terminate", runs=baskets("a")).execute()
    run = BulkItem.objects.get().run_id
    BulkItem.objects.bulk_create(BulkItem(job_id=job.pk, run_id=run) for _ in range(150))
    with django_assert_max_num_queries(6):
        text = admin.get(f"{JOBS}{job.pk}/?p=2").content.decode()
    assert "page 2 of 2" in text
    for odd in ("?p=0", "?p=x", "?p=99", "?" + urlencode({"p": "²"})):
        assert admin.get(f"{JOBS}{job.pk}/{odd}").status_code == 200


def test_the_page_of_a_job_moves_and_the_admin_leads_to_it(admin: Client) -> None:
    job = StartBulk("terminate", runs=baskets("a")).execute()
    page = admin.get(f"{JOBS}{job.pk}/").content.decode()
    (address,) = re.findall(r'data-hx-get="([^"]*)"', page)
    address = address.replace("&amp;", "&")
    assert admin.get(address).status_code == 204
    finished()
    ended = admin.get(address).content.decode()
    assert "1 of 1 finished" in ended
    assert "data-hx-get" not in ended  # it changes no more
    assert "csrfmiddlewaretoken" not in ended
    listed = admin.get(JOBS).content.decode()
    (address,) = re.findall(r'data-hx-get="([^"]*)"', listed)
    address = address.replace("&amp;", "&")
    assert admin.get(address).status_code == 204
    StartBulk("pause", runs=baskets("b")).execute()
    assert "Pause: 1 run" in admin.get(address).content.decode()
    assert "Pause" not in admin.get(f"{JOBS}?state=done").content.decode().partition("tx-jobs")[2]
    old = "/admin/temporalex_django/bulkjob/"
    assert admin.get(old)["Location"] == JOBS
    assert admin.get(f"{old}{job.pk}/change/")["Location"] == f"{JOBS}{job.pk}/"
    assert somebody("ann", "view_instance").get(old).status_code == 403
