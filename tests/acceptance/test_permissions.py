"""``update(fn, permission=...)`` and ``signal(fn, permission=...)``.

Judged at dispatch, at first execution only, wherever a user is named.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import (
    Async,
    ContinueAsNew,
    NoReply,
    Ok,
    Reply,
    Stop,
    Workflow,
    api,
    signal,
    update,
)
from temporalex_django.errors import ActionNotPermitted, UpdateRejected, WorkflowDefinitionError
from tests.support.people import person
from tests.support.runs import forget

MAY = "auth.change_group"
OTHER = "auth.view_group"
asked: list[Any] = []


def look(args: Any, state: Any) -> None:
    asked.append(args)


def pay(args: Any, state: Any) -> Reply:
    return Reply("paid", {**state, "paid": state["paid"] + args})


def slow(args: Any, state: Any) -> Async:
    return Async(lambda: api.sleep(60), state)


async def busy(args: Any, state: Any) -> Reply:
    await api.sleep(60)
    return Reply(None, state)


HANDLERS: dict[str, Any] = {
    "update": {"pay": update(pay, validator=look, permission=MAY), "busy": busy},
    "signal": {
        "note": signal(lambda args, state: NoReply({**state, "notes": [*state["notes"], args]}), permission=MAY),
        "free": lambda args, state: NoReply({**state, "notes": [*state["notes"], args]}),
        "stop": lambda _, state: Stop(state),
    },
}


class Till(Workflow):
    async def run(self, args: Any) -> Any:
        if args == "later":
            await api.sleep(60)
        if args == "again":
            await api.sleep(60)
            return ContinueAsNew(None)
        return Ok(await api.phase({"paid": 0, "notes": []}, **HANDLERS))


@pytest.fixture(autouse=True)
def _nobody_asked() -> None:
    asked.clear()


def kinds(h: Any) -> list[str]:
    return [event.kind for event in h.history()]


def test_an_update_takes_the_permission_before_its_validator_is_asked(env: Any) -> None:
    h = env.start(Till, id="till")
    before = kinds(h)

    for who in (person(env, "eve", OTHER), person(env, "gone", MAY, is_active=False)):
        with pytest.raises(
            ActionNotPermitted, match=rf"Till till: {who.username} may not send the update 'pay'.*{MAY}"
        ):
            h.update("pay", 5, by=who)
    assert (asked, kinds(h)) == ([], before)
    assert h.update("pay", 7, by=person(env, "ann", MAY)) == "paid"
    assert h.update("pay", 1) == "paid"  # code
    h.signal("stop")
    assert h.result()["paid"] == 8


def test_a_refused_update_leaves_its_id_free(env: Any) -> None:
    h = env.start(Till, id="till")

    u = h.update_async("pay", 5, id="u", by=person(env, "eve"))

    assert (u.accepted, u.done) == (False, True)
    with pytest.raises(ActionNotPermitted):
        u.result()
    assert h.update("pay", 5, id="u", by=person(env, "ann", MAY)) == "paid"


def test_an_update_behind_a_busy_handler_is_judged_when_its_turn_comes(env: Any) -> None:
    h = env.start(Till, id="till")
    h.update_async("busy")
    waits = h.update_async("pay", 5, by=person(env, "eve"))
    assert not waits.done

    env.advance(timedelta(minutes=1))

    assert (waits.accepted, waits.done, asked) == (False, True, [])


def test_a_refused_signal_leaves_no_event_and_the_others_go_on(env: Any) -> None:
    h = env.start(Till, id="till")
    ann, eve = person(env, "ann", MAY), person(env, "eve", OTHER)
    before = kinds(h)

    h.signal("note", "evil", by=eve)

    assert kinds(h) == before
    assert [(r.workflow_id, r.signal, r.sender.name, r.permission) for r in env.refused] == [
        ("till", "note", "eve", MAY)
    ]
    with env.batch():
        h.signal("note", 1, by=ann)
        h.signal("note", "evil", by=eve)
        paid = h.update_async("pay", 5, by=ann)
        h.signal("note", "evil", by=eve)
        h.signal("free", 2, by=eve)
        late = h.update_async("pay", 6, by=ann)
        h.signal("note", 3)
    assert (paid.result(), late.result()) == ("paid", "paid")
    assert len(env.refused) == 3
    after = [e.attributes["after"] for e in h.history() if e.kind == "UpdateAccepted"]
    assert after == [1, 2]
    h.signal("stop")
    assert h.result() == {"paid": 11, "notes": [1, 2, 3]}


def test_a_signal_that_came_before_its_phase_is_judged_when_the_phase_takes_it_and_never_again(env: Any) -> None:
    h = env.start(Till, "later", id="till")
    ann, eve = person(env, "ann", MAY), person(env, "eve", OTHER)
    h.signal("note", 1, by=ann)
    h.signal("note", "evil", by=eve)
    h.signal("note", 2)
    env.advance(timedelta(minutes=1))

    assert [r.sender.name for r in env.refused] == ["eve"]
    stamps = [e.attributes.get("refused") for e in h.history() if e.kind == "ActivationStarted"]
    assert [stamp for stamp in stamps if stamp] == [[2]]
    env.replay(h)
    h.signal("stop")
    assert h.result()["notes"] == [1, 2]
    assert len(env.refused) == 1


def test_what_goes_on_to_the_next_run_is_judged_there(env: Any) -> None:
    h = env.start(Till, "again", id="till")
    h.signal("note", "evil", by=person(env, "eve"))
    h.signal("note", 1, by=person(env, "ann", MAY))
    env.advance(timedelta(minutes=1))
    h.signal("stop")

    assert h.result()["notes"] == [1]
    assert [r.sender.name for r in env.refused] == ["eve"]


def test_a_permission_that_goes_after_the_update_changes_nothing(env: Any) -> None:
    """First execution only: a replay asks nobody."""
    h = env.start(Till, id="till")
    ann = person(env, "ann", MAY)
    h.update("pay", 5, by=ann)
    h.signal("note", 1, by=ann)
    if hasattr(ann, "permissions"):
        ann.permissions.clear()
    else:
        ann.delete()

    forget(env)
    env.replay(h)
    with pytest.raises(ActionNotPermitted):
        h.update("pay", 5, by=ann)
    h.signal("stop")

    assert h.result() == {"paid": 5, "notes": [1]}


def test_what_no_phase_takes_is_refused_as_such(env: Any) -> None:
    h = env.start(Till, id="till")

    with pytest.raises(UpdateRejected, match="not accepting"):
        h.update("unknown", by=person(env, "eve"))


@pytest.mark.parametrize("wrong", ["pay", "", ".", "shop.", ".pay", 7, ["shop.pay"]])
@pytest.mark.parametrize("wrapper", [update, signal])
def test_a_permission_has_an_app_and_a_codename(wrapper: Any, wrong: Any) -> None:
    with pytest.raises(WorkflowDefinitionError, match=r"permission must be of the form app\.codename"):
        wrapper(pay, permission=wrong)
