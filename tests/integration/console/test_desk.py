"""The desk of the console: open human tasks by their candidates, and tasks that are given to another person."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client, override_settings
from django.urls import include, path
from django.utils import timezone

from temporalex_django import Ok, Workflow, api
from temporalex_django.access import AccessPolicy
from temporalex_django.console import live
from temporalex_django.models import HumanTask, OperatorAction
from tests.support.client_flows import drain
from tests.support.people import stored

pytestmark = pytest.mark.django_db

CONSOLE = "/admin/temporalex_django/instance/console/"
DESK, REASSIGN = f"{CONSOLE}desk/", f"{CONSOLE}desk/reassign/"
VIEW, DELEGATE = "temporalex_django.view_instance", "temporalex_django.delegate_humantask"
RELEASE, PAYLOAD = "temporalex_django.release_humantask", "temporalex_django.view_payload"
#: The URLs of a project that does not include the pages of human tasks.
urlpatterns = [path("workflows/", include("temporalex_django.console.urls"))]


class Question(Workflow):
    """Asks the groups and users of its input."""

    name = "test.QuestionOfTheDesk"

    async def run(self, args: Any) -> Any:
        return Ok(await api.approval(args["title"], groups=args.get("groups", ()), users=args.get("users", ())))


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    live._values.clear()
    yield
    live._values.clear()


def staff(name: str, *permissions: str, groups: tuple[str, ...] = ()) -> Client:
    user = stored(name, *permissions)
    user.is_staff = True
    user.save()
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    client = Client()
    client.force_login(get_user_model().objects.get(username=name))
    return client


def ask(title: str, **asked: Any) -> HumanTask:
    Question.start({"title": title, **asked}, id=title if title.endswith("-1") else None)
    drain()
    return HumanTask.objects.get(title=title)


def text_of(response: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def poll(client: Client, response: Any) -> Any:
    (address,) = re.findall(r'data-hx-get="([^"]*)"', response.content.decode())
    return client.get(html.unescape(address))


def notes(response: Any) -> list[str]:
    return [
        html.unescape(note) for note in re.findall(r'<li class="tx-note-\w+">(.*?)</li>', response.content.decode())
    ]


def test_the_groups_say_what_waits_for_whom() -> None:
    root, now = staff("root", VIEW, PAYLOAD), timezone.now()
    staff("ann", groups=("lawyers",))
    for number in range(3):
        ask(f"Sign {number}?", groups=["lawyers"])
    ask("Pay?", groups=["nobody"])
    HumanTask.objects.filter(title="Sign 0?").update(due_at=now - timedelta(hours=1))
    HumanTask.objects.filter(title="Sign 1?").update(escalated_at=now - timedelta(hours=1))

    page = root.get(DESK)
    first, second = page.context["groups"]
    assert (first["name"], first["count"], first["undecidable"]) == ("the group nobody", 1, 1)
    assert [second[name] for name in ("name", "count", "overdue", "escalated", "undecidable")] == [
        "the group lawyers", 3, 1, 1, 0,
    ]  # fmt: skip
    assert [row["title"] for row in page.context["rows"]] == ["Sign 0?", "Sign 1?", "Sign 2?", "Pay?"]
    assert "Nobody can decide" in text_of(page)

    def titles(address: str) -> set[str]:
        return {row["title"] for row in root.get(address).context["rows"]}

    assert titles(first["address"]) == {"Pay?"}
    assert titles(second["address"]) == {"Sign 0?", "Sign 1?", "Sign 2?"}
    assert titles(second["overdue_address"]) == {"Sign 0?"}
    assert "No human tasks match" in text_of(root.get(f"{DESK}?asked=group:others"))
    overview = root.get(CONSOLE).content.decode()
    assert f'<a href="{DESK}"><span class="tx-tile-value">4</span>' in overview


def test_tasks_are_given_to_a_person_from_a_choice_of_those_who_decide() -> None:
    ann = staff("ann", VIEW, DELEGATE, groups=("lawyers",))
    staff("bob", groups=("bankers",))
    staff("customer")
    tasks = [ask(f"Sign {number}?", groups=["lawyers"]) for number in range(3)]
    ask("Pay?", groups=["bankers"])

    page = ann.get(DESK)
    assert re.findall(r'<option value="(\w+)"', page.content.decode().partition("tx-reassign")[2]) == ["ann", "bob"]
    posted = {"task": [task.pk for task in tasks[:2]], "to": "bob", "reason": "on leave", "query": "whose=all&x=1"}
    done = ann.post(REASSIGN, posted, follow=True)
    assert notes(done) == ["2 tasks were given to bob."]
    assert done.redirect_chain == [(f"{DESK}?whose=all", 302)]
    assert [[one["to"] for one in task.delegated] for task in HumanTask.objects.order_by("title")] == [
        [], ["bob"], ["bob"], [],
    ]  # fmt: skip
    rows = OperatorAction.objects.filter(action="delegate", denied=False)
    assert [*rows.values_list("actor_name", "reason", "source")] == [("ann", "on leave", "admin")] * 2

    assert notes(ann.post(REASSIGN, {"to": "bob"}, follow=True)) == ["Select the tasks first."]
    wrong = notes(ann.post(REASSIGN, {"task": [tasks[2].pk], "to": "customer"}, follow=True))
    assert "is not one of the available choices" in wrong[0]
    missing = notes(ann.post(REASSIGN, {"task": ["x", tasks[2].pk], "to": "bob"}, follow=True))
    assert missing == ["One of the tasks does not exist any more, or you may not see it.", "1 task was given to bob."]


def test_a_claim_is_released_by_those_who_may() -> None:
    for name in ("bob", "eve"):
        staff(name, groups=("lawyers",))
    task = ask("Sign?", groups=["lawyers"])
    claimed = {"claimed_by_key": "1", "claimed_by_name": "bob", "claimed_until": timezone.now() + timedelta(hours=1)}
    HumanTask.objects.update(**claimed)
    ann = staff("ann", VIEW, DELEGATE, groups=("lawyers",))
    (refused,) = notes(ann.post(REASSIGN, {"task": [task.pk], "to": "eve"}, follow=True))
    assert "is claimed by bob" in refused
    may = staff("may", VIEW, DELEGATE, RELEASE, groups=("lawyers",))
    assert notes(may.post(REASSIGN, {"task": [task.pk], "to": "eve"}, follow=True)) == ["1 task was given to eve."]
    task.refresh_from_db()
    assert (task.claimed_by_name, [one["to"] for one in task.delegated]) == ("", ["eve"])


def test_who_may_not_decide_or_delegate_changes_nothing() -> None:
    staff("ann", groups=("lawyers",))
    task = ask("Sign?", groups=["lawyers"])
    looks = staff("looks", VIEW)
    assert "Reassign" not in text_of(looks.get(DESK))
    assert looks.post(REASSIGN, {"task": [task.pk], "to": "ann"}).status_code == 403
    assert OperatorAction.objects.filter(denied=True, action="delegate", actor_name="looks").count() == 1
    outside = staff("outside", VIEW, DELEGATE)
    (refused,) = notes(outside.post(REASSIGN, {"task": [task.pk], "to": "ann"}, follow=True))
    assert "may not decide" in refused or "not" in refused
    task.refresh_from_db()
    assert task.delegated == []


class OnlyMine(AccessPolicy):
    """Shows each user only the runs whose id begins with theirs."""

    def narrow(self, user: Any, runs: Any) -> Any:
        return runs.filter(workflow_id__startswith=user.username)


def test_tasks_of_other_tenants_do_not_exist() -> None:
    with override_settings(TEMPORALEX={"ACCESS_POLICY": f"{__name__}.OnlyMine"}):
        ann = staff("ann", VIEW, DELEGATE, PAYLOAD, groups=("lawyers",))
        staff("bob", groups=("bankers",))
        mine, other = ask("ann-1", groups=["lawyers"]), ask("bob-1", groups=["bankers"])
        page = ann.get(DESK)
        assert [group["name"] for group in page.context["groups"]] == ["the group lawyers"]
        assert [row["title"] for row in page.context["rows"]] == ["ann-1"]
        assert "bob" not in text_of(page)
        assert ann.get(f"{DESK}{other.pk}/").status_code == 404
        assert ann.get(f"{DESK}{mine.pk}/").status_code == 200
        done = notes(ann.post(REASSIGN, {"task": [other.pk, mine.pk], "to": "ann"}, follow=True))
        assert done[0] == "One of the tasks does not exist any more, or you may not see it."
        other.refresh_from_db()
        assert other.delegated == []


def test_titles_are_payloads_for_those_who_may_not_see_them() -> None:
    staff("ann", groups=("lawyers",))
    ask("A secret?", groups=["lawyers"])
    looks = staff("looks", VIEW)
    page = looks.get(f"{DESK}?q=A+sec")
    assert "secret" not in page.content.decode().replace("A sec", "")
    assert "A secret?" not in looks.get(f"{DESK}?whose=all").content.decode()


def test_the_desk_takes_few_statements_and_an_unchanged_poll_none(django_assert_max_num_queries: Any) -> None:
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root"))
    for group in ("lawyers", "bankers", "clerks"):
        staff(f"of-{group}", groups=(group,))
    for number in range(60):
        Question.start({"title": f"Q {number}?", "groups": [("lawyers", "bankers", "clerks")[number % 3]]})
    ask("Pay?", groups=["nobody"], users=["of-clerks"])
    with django_assert_max_num_queries(12):
        page = client.get(DESK)
    assert page.content.decode().count('name="task"') == 50
    with django_assert_max_num_queries(2):  # the session and the user
        assert poll(client, page).status_code == 204
    live._values.clear()
    HumanTask.objects.filter(title="Q 0?").update(due_at=timezone.now() - timedelta(hours=1))
    with django_assert_max_num_queries(12):
        changed = poll(client, page)
    assert "(late)" in changed.content.decode()
    assert "csrfmiddlewaretoken" not in changed.content.decode()
    assert not OperatorAction.objects.exists()


def test_the_console_has_the_page_of_a_task_where_the_project_has_none() -> None:
    staff("ann", groups=("lawyers",))
    task = ask("Sign?", groups=["lawyers"])
    with override_settings(ROOT_URLCONF=__name__, LOGIN_URL="/login/"):
        ann = Client()
        ann.force_login(get_user_model().objects.get(username="ann"))
        page = f"/workflows/desk/{task.pk}/"
        assert f'<a href="{page}">Sign?</a>' in ann.get("/workflows/desk/").content.decode()
        shown = ann.get(page).content.decode()
        assert shown.count("<h1") == 1
        assert "/admin/" not in shown
        assert Client().get(page).status_code == 302
        done = ann.post(page, {"token": "t", "outcome": "approved"}, follow=True)
        assert "Your decision was recorded in the history." in text_of(done)
