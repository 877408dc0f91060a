"""Who may look at a run sees its shape; payloads take a permission of their own, and redacted fields nobody sees."""

from __future__ import annotations

from contextlib import suppress
from traceback import format_exception
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client, override_settings
from rest_framework.test import APIClient

from temporalex_django import (
    Approval,
    Done,
    Err,
    Event,
    GraphWorkflow,
    NoReply,
    Ok,
    Reply,
    RetryPolicy,
    Step,
    Stop,
    Unique,
    Workflow,
    activity,
    api,
    errors,
    query,
)
from temporalex_django.authoring import workflow as workflows
from temporalex_django.models import Instance, OperatorAction
from temporalex_django.testing import drain
from tests.support import tenants
from tests.support.people import stored
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db

URL = "/api/instances/"
RUNS = "/admin/temporalex_django/instance/"
ACTIONS = "/admin/temporalex_django/operatoraction/"
CARD, MAIL, PLAIN = "4111-1111", "ann@example.org", "a plain word"


@activity
def charge(order: Any) -> Any:
    return {"receipt": PLAIN, "card": order["card"]}


class Paying(Workflow):
    """All kinds of payloads, with a card and an address in each."""

    name = "test.Paying"
    redacted = ("card", "customer.email", "secret_note")

    @query("order")
    @staticmethod
    def order(state: Any) -> Any:
        return state

    async def run(self, args: Any) -> Any:
        api.publish_state(args)
        await charge(args)
        state = await api.phase(
            args,
            update={"pay": lambda args, state: Reply(args, state)},
            signal={
                "note": lambda _, state: NoReply(state),
                "secret_note": lambda _, state: NoReply(state),
                "end": Stop_,
            },
        )
        return Err(state) if args.get("fail") else Ok(state)


def Stop_(_: Any, state: Any) -> Stop:
    return Stop(state)


ORDER = {"card": CARD, "customer": {"name": PLAIN, "email": MAIL}, "lines": [{"card": CARD, "email": PLAIN}]}


SHAPES = ("activities/", "children/", "messages/", "operations/")


def person(*permissions: str, staff: bool = False) -> Any:
    user = stored("ann", "temporalex_django.view_instance", *(f"temporalex_django.{name}" for name in permissions))
    user.is_staff = staff
    user.save()
    return user


def rest(user: Any) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture(params=[False, True], ids=["completed", "failed"])
def ended(request: pytest.FixtureRequest) -> Any:
    handle = Paying.start({**ORDER, "fail": request.param}, id="p-1")
    drain()
    handle.update("pay", ORDER, id="u-1")
    handle.signal("note", ORDER)
    handle.signal("secret_note", CARD)
    handle.signal("end")
    drain()
    return handle


def everywhere(handle: Any, user: Any) -> dict[str, str]:
    """All that the faces tell of a run, as text."""
    client, pages = rest(user), Client()
    pages.force_login(user)
    found = {
        verb: client.get(f"{URL}{handle.id}/{verb}").content.decode()
        for verb in ("", "events/", "result/", "updates/pay/?id=u-1", *SHAPES)
    }
    found["list"] = client.get(URL).content.decode()
    found["page"] = text_of(pages, handle.run_id)
    found["console list"] = pages.get(f"{RUNS}console/runs/").content.decode()
    found["history"] = repr(handle.history(by=user))
    found["describe"] = repr(handle.describe(by=user))
    return found


def test_without_the_permission_a_run_shows_its_shape_only(ended: Any) -> None:
    for where, text in everywhere(ended, person(staff=True)).items():
        for secret in (CARD, MAIL, PLAIN, "Traceback"):
            assert secret not in text, (where, secret)
    ann = person_again()
    with pytest.raises(errors.ActionNotPermitted, match="view_payload"):
        ended.result(by=ann)
    events = rest(ann).get(f"{URL}p-1/events/").json()["results"]
    assert [event["kind"] for event in events] == [event.kind for event in ended.history()]
    scheduled = next(event["attributes"] for event in events if event["kind"] == "ActivityScheduled")
    assert scheduled["activity"].endswith("charge")
    assert scheduled["args"] == {"hidden": "temporalex_django.view_payload"}


def test_with_it_all_but_what_is_redacted_and_code_sees_everything(ended: Any) -> None:
    ann = person("view_payload", staff=True)
    found = everywhere(ended, ann)

    for where in ("events/", "result/", "page", "history", "updates/pay/?id=u-1"):
        assert PLAIN in found[where], where
    for where, text in found.items():
        assert CARD not in text, where
        assert MAIL not in text, where
    assert found["events/"].count("[redacted]") > 8
    assert CARD in repr(ended.history())
    if ended.status == "completed":
        assert ended.result(by=ann) == {**redacted(), "fail": False}
        assert ended.result() == {**ORDER, "fail": False}


def redacted() -> dict[str, Any]:
    gone = "[redacted]"
    return {"card": gone, "customer": {"name": PLAIN, "email": gone}, "lines": [{"card": gone, "email": PLAIN}]}


def person_again() -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.get(username="ann")


def test_a_query_and_the_answer_to_an_update_are_redacted_and_are_for_whoever_asked() -> None:
    handle = Paying.start(ORDER, id="p-1")
    drain()
    ann = person("query_instance", "update_instance")

    asked = rest(ann).post(f"{URL}p-1/queries/order/", {}, format="json").json()["result"]
    sent = rest(ann).post(f"{URL}p-1/updates/pay/", {"args": ORDER, "id": "u-1"}, format="json").json()["result"]

    assert asked == sent == handle.query("order", by=ann) == redacted()
    assert handle.query("order") == ORDER
    assert rest(ann).get(f"{URL}p-1/updates/pay/?id=u-1").json()["result"] == redacted()
    bob = stored("bob", "temporalex_django.view_instance")
    assert rest(bob).get(f"{URL}p-1/updates/pay/?id=u-1").json()["result"] == {
        "hidden": "temporalex_django.view_payload"
    }


def test_what_blocks_a_run_quotes_payloads_so_its_text_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Paying.start(ORDER, id="p-1")
    drain()
    Instance.objects.filter(pk=handle.run_id).update(
        blocked={
            "code": "nondeterminism",
            "error": f"ValueError: {PLAIN}",
            "since": "2026-11-22T04:00:00+00:00",
            "attempt": 3,
        }
    )
    ann = person(staff=True)

    for where, text in everywhere(handle, ann).items():
        assert PLAIN not in text, where
    told = rest(ann).get(f"{URL}p-1/").json()["blocked"]
    assert (told["code"], told["attempt"]) == ("nondeterminism", 3)
    ann.user_permissions.add(Permission.objects.get(codename="view_payload"))
    ann = person_again()
    for where, text in everywhere(handle, ann).items():  # nor does anybody know which of it is redacted
        assert f"ValueError: {PLAIN}" not in text, where
    assert rest(ann).get(f"{URL}p-1/").json()["blocked"]["error"] == "[redacted]"
    monkeypatch.setattr(Paying, "redacted", ())
    for where in ("", "list", "page", "console list", "describe", "result/"):
        assert f"ValueError: {PLAIN}" in everywhere(handle, ann)[where], where


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=3600))
def decline(order: Any) -> Any:
    raise ConnectionError(f"the bank does not know {order['card']}")


class Declining(Workflow):
    name = "test.DecliningCards"
    redacted = ("card",)

    @query("worst")
    @staticmethod
    def worst(state: Any) -> Any:
        raise ValueError(state["card"])

    async def run(self, order: Any) -> Any:
        api.publish_state(order)
        await decline(order)
        return Ok(None)


def test_what_exceptions_say_of_a_class_that_redacts_is_their_type_and_where_they_came_from() -> None:
    """While it is tried again, when it failed, and when a query fails; code reads all of it."""
    ann = person("view_payload", "query_instance", "retry_activity", staff=True)
    handle = Declining.start(ORDER, id="p-1")
    for state in ("retrying", "failed"):
        drain()
        if state == "failed":
            handle.retry_activity(1)
            drain()
        found = everywhere(handle, ann)
        for where, text in found.items():
            assert CARD not in text, (state, where)
        for where in ("page", "describe" if state == "retrying" else "result/"):
            assert "ConnectionError" in found[where] or "ActivityFailure" in found[where], (state, where)
        assert "in decline" in found["describe"] or state == "failed"
        asked = rest(ann).post(f"{URL}p-1/queries/worst/", {}, format="json").content.decode()
        assert CARD not in asked
        assert "ValueError" in asked
    assert handle.status == "failed"
    assert CARD in repr(handle.history())
    with pytest.raises(errors.WorkflowFailed, match=CARD):
        handle.result()
    with pytest.raises(errors.WorkflowFailed, match=r"\[redacted\]"):
        handle.result(by=ann)


def test_messages_in_the_inbox_and_operators_addresses() -> None:
    handle = Paying.start(ORDER, id="p-1")
    handle.signal("note", PLAIN)
    handle.terminate("by phone")
    OperatorAction.objects.update(address="192.0.2.44", automatic=False)
    ann = person("view_operatoraction", staff=True)
    pages, row = Client(), OperatorAction.objects.get()
    pages.force_login(ann)
    addresses = (f"{RUNS}console/runs/{handle.run_id}/audit/", ACTIONS, f"{ACTIONS}{row.pk}/change/")

    for address in addresses:
        text = pages.get(address).content.decode()
        assert "192.0.2.44" not in text
        assert PLAIN not in text
        assert "by phone" in text
    ann.user_permissions.add(Permission.objects.get(codename="view_payload"))
    assert "192.0.2.44" in pages.get(addresses[0]).content.decode()
    assert "192.0.2.44" in pages.get(addresses[2]).content.decode()


def test_of_a_class_that_is_not_here_nobody_knows_what_it_redacts(ended: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(workflows.registry, "test.Paying")
    ann = person("view_payload", staff=True)

    for where, text in everywhere(ended, ann).items():
        for secret in (CARD, MAIL, PLAIN):
            assert secret not in text, (where, secret)


@override_settings(TEMPORALEX={"ACCESS_POLICY": f"{tenants.__name__}.Masking"})
def test_a_policy_masks_what_is_left(ended: Any) -> None:
    found = everywhere(ended, person("view_payload", staff=True))

    for where, text in found.items():
        assert PLAIN not in text, where
    assert "***" in found["page"]


class Pick(Step):
    events = ("picked",)

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("picked", {"card": CARD, "shelf": PLAIN})


class Packing(GraphWorkflow):
    name = "test.Packing"
    redacted = ("card",)
    unique = Unique(key="packing")
    initial = Pick
    transitions = {(Pick, "picked"): Approval(), (Approval(), "approved"): Done, (Approval(), "rejected"): Done}


def test_the_instance_of_a_graph_is_redacted() -> None:
    handle = Packing.start("1", {"card": CARD, "who": PLAIN})
    drain()
    ann = person("view_payload")

    instance = handle.instance(by=ann)

    assert instance.context.steps.pick == {"card": "[redacted]", "shelf": PLAIN}
    assert instance.initial == {"card": "[redacted]", "who": PLAIN}
    assert handle.instance().initial == {"card": CARD, "who": PLAIN}
    with pytest.raises(errors.ActionNotPermitted, match="view_payload"):
        handle.instance(by=stored("bob", "temporalex_django.view_instance"))


class Failing(Workflow):
    """Its answers are bare values that are redacted, and its refusals quote payloads."""

    name = "test.FailingUpdate"
    redacted = ("card",)

    @query("card")
    @staticmethod
    def card(state: Any) -> Any:
        return CARD

    async def run(self, args: Any) -> Any:
        def fail(args: Any, state: Any) -> Any:
            raise ValueError(PLAIN)

        api.publish_state(1)
        await api.phase(1, update={"fail": fail, "card": lambda args, state: Reply(CARD, state)})


def test_a_bare_answer_under_a_redacted_name_is_redacted() -> None:
    handle = Failing.start(id="f-1")
    drain()
    ann = person("query_instance", "update_instance", "view_payload")

    assert rest(ann).post(f"{URL}f-1/queries/card/", {}, format="json").json()["result"] == "[redacted]"
    assert rest(ann).post(f"{URL}f-1/updates/card/", {"id": "u"}, format="json").json()["result"] == "[redacted]"
    assert handle.query("card", by=ann) == "[redacted]"
    assert handle.query("card") == CARD


def test_why_an_update_failed_is_for_whoever_sent_it_and_for_who_may_see_payloads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Failing.start(id="f-1")
    drain()
    ann, bob = person("update_instance"), stored("bob", "temporalex_django.view_instance")
    sent = rest(ann).post(f"{URL}f-1/updates/fail/", {"id": "u-1"}, format="json")

    def told(user: Any) -> str:
        answer = rest(user).get(f"{URL}f-1/updates/fail/?id=u-1")
        assert answer.status_code == sent.status_code == 422
        return answer.content.decode()

    assert PLAIN not in told(ann)
    assert "ValueError: [redacted]" in told(ann)  # who sent it reads what went wrong, less what is redacted
    assert "ValueError: hidden" in told(bob)
    bob.user_permissions.add(Permission.objects.get(codename="view_payload"))
    bob = type(bob).objects.get(pk=bob.pk)
    assert "ValueError: [redacted]" in told(bob)
    monkeypatch.setattr(Failing, "redacted", ())
    assert PLAIN in told(bob)


def test_no_lookup_of_the_admin_tells_of_columns_that_are_not_shown() -> None:
    handle = Paying.start(ORDER, id="p-1")
    handle.terminate("by phone")
    Instance.objects.filter(pk=handle.run_id).update(blocked={"code": "x", "error": PLAIN})
    OperatorAction.objects.update(address="192.0.2.44")
    pages = Client()
    pages.force_login(person("view_operatoraction", staff=True))

    for address in (
        f"{RUNS}?blocked__error__startswith=a",
        f"{RUNS}?args__contains=4",
        f"{RUNS}console/runs/?args__contains=4",
        f"{ACTIONS}?address__startswith=1",
    ):
        assert pages.get(address).status_code == 400, address
    for address in (
        f"{RUNS}console/runs/?status=terminated",
        f"{RUNS}console/runs/?status=terminated&workflow=test.Paying",
        f"{ACTIONS}?who=all",
    ):
        answer = pages.get(address)
        assert (answer.status_code, b"p-1" in answer.content) == (200, True), address


@activity(retry=RetryPolicy(initial_interval=3600.0))
def quotes_and_is_tried_again(card: str) -> None:
    raise LookupError(f"no account for {card}")


@activity(retry=RetryPolicy(max_attempts=1))
def quotes_and_fails(card: str) -> None:
    raise BufferError(f"no account for {card}")


class QuotingKid(Workflow):
    name = "test.QuotingKid"

    async def run(self, args: Any) -> Any:
        raise ArithmeticError(f"no account for {args}")


class Quoting(Workflow):
    """Whatever fails quotes what it was given."""

    name = "test.Quoting"
    code = "right"

    @query("fails")
    @staticmethod
    def fails(state: Any) -> Any:
        raise IndexError(f"no account for {state}")

    async def run(self, args: Any) -> Any:
        api.publish_state(args)
        with suppress(errors.ActivityFailure):
            await quotes_and_fails(args)
        with suppress(errors.ChildWorkflowFailure):
            await api.child(QuotingKid, args, id="q-kid")
        if self.code == "wrong":
            raise RecursionError(f"no account for {args}")

        def fails(args: Any, state: Any) -> Any:
            raise EOFError(f"no account for {args}")

        await api.phase(0, update={"fail": fails}, signal={"end": Stop_})
        await quotes_and_is_tried_again(args)
        return Ok(None)


def test_without_the_permission_nobody_is_told_the_words_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its type alone, wherever it stands: words and tracebacks quote payloads."""
    ann = person("reset_instance", "query_instance", staff=True)
    handle = Quoting.start(PLAIN, id="q-1")
    drain()
    with pytest.raises(errors.UpdateFailed):
        handle.update("fail", PLAIN)
    handle.signal("end")
    drain()

    def told(kinds: set[str]) -> None:
        found = everywhere(handle, ann)
        for where, text in found.items():
            assert PLAIN not in text, where
            assert "Traceback" not in text, where
        assert all(kind in found["events/"] + found["activities/"] + found[""] for kind in kinds)

    told({"BufferError", "ArithmeticError", "EOFError", "LookupError"})
    asked = rest(ann).post(f"{URL}q-1/queries/fails/", {}, format="json").content.decode()
    with pytest.raises(errors.QueryFailed, match="IndexError") as failed:
        handle.query("fails", by=ann)
    assert "IndexError" in asked
    assert PLAIN not in asked + str(failed.value) + "".join(format_exception(failed.value))
    with monkeypatch.context() as patched:
        patched.setattr(Quoting, "code", "wrong")
        with pytest.raises(errors.ActionNotPossible, match="RecursionError at ") as refused:
            handle.reset(4, by=ann)
        assert PLAIN not in str(refused.value)
    (under_way,) = handle.describe().activities
    handle.fail_activity(under_way.seq, f"the card {PLAIN} is stolen", type="Stolen")
    drain()
    assert handle.status == "failed"
    told({"BufferError", "ArithmeticError", "EOFError", "Stolen"})
