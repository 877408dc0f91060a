"""An exception that escapes ``run`` and that nobody raised on purpose: it fails the run, or blocks it."""

from __future__ import annotations

import pytest

from temporalex_django import Async, ContinueAsNew, Err, Ok, RetryPolicy, Stop, Workflow, activity, api, errors
from temporalex_django.errors import WorkflowDefinitionError
from tests.support.runs import broken, events, flow, kinds, once, other, work

RIGHT = {"is": False}
FINAL = RetryPolicy(max_attempts=1)
tried: list[int] = []


@pytest.fixture(autouse=True)
def _wrong():
    RIGHT["is"] = False
    yield
    RIGHT["is"] = True


class Bill(Workflow):
    name = "test.UnexpectedBill"
    unexpected_error = "block"

    async def run(self, args):
        total = await work(100)
        rate = {"vat": 0.2} if RIGHT["is"] else {}
        return Ok(total * (1 + rate["vat"]))


def test_the_run_is_blocked_and_goes_on_when_the_code_is_right(env):
    with pytest.raises(KeyError, match="vat"):
        env.start(Bill, id="bill")
    h = env.handle("bill")
    assert isinstance(h.blocked, KeyError)
    assert h.describe().blocked["code"] == "KeyError"
    assert "ActivityCompleted" not in kinds(h)  # the activation has committed nothing
    assert h.status not in ("failed", "completed")

    RIGHT["is"] = True
    env.advance(0)

    assert h.result() == pytest.approx(120)
    assert h.blocked is None


@pytest.mark.parametrize("result", [None, 5, Ok({1, 2}), Ok(object())])
def test_what_run_may_not_return_blocks_too(env, result):
    async def run(self, args):
        await api.wait_for_signal("go")
        return Ok(1) if RIGHT["is"] else result

    cls = type("Returns", (Workflow,), {"run": run, "name": "test.UnexpectedReturn", "unexpected_error": "block"})
    h = env.start(cls, id="returns")
    with pytest.raises((TypeError, errors.PayloadError)):
        h.signal("go")
    assert h.blocked is not None

    RIGHT["is"] = True
    env.advance(0)

    assert h.result() == 1


@activity(retry=FINAL)
def refuses():
    raise errors.ApplicationError("no stock", type="OutOfStock", details={"sku": "cup"})


async def by_activity():
    await broken.options(retry=FINAL)(1)


async def by_child():
    await api.child(once(by_activity, name="test.UnexpectedChild"))


async def on_purpose():
    raise errors.ApplicationError("not today", type="Closed", details={"until": "Monday"})


@pytest.mark.parametrize(
    ("body", "kind"),
    [(by_activity, "ActivityFailure"), (by_child, "ChildWorkflowFailure"), (on_purpose, "Closed")],
)
def test_failures_on_purpose_fail_the_run(env, body, kind):
    h = env.start(once(body, unexpected_error="block"), id="purpose")

    with pytest.raises(errors.WorkflowFailed) as failed:
        h.result()

    assert failed.value.type == kind


def test_an_application_error_keeps_its_details(env):
    h = env.start(once(on_purpose), id="purpose")

    with pytest.raises(errors.WorkflowFailed, match="not today") as failed:
        h.result()

    assert failed.value.details == {"until": "Monday"}


def test_an_application_error_of_an_activity(env):
    caught = []

    async def body():
        try:
            await refuses()
        except errors.ActivityFailure as failure:
            caught[:] = [failure.type, failure.details]
        return 1

    assert env.start(once(body), id="stock").result() == 1
    assert caught == ["OutOfStock", {"sku": "cup"}]


@activity
def hopeless():
    tried.append(1)
    raise errors.ApplicationError("never", non_retryable=True)


def test_a_non_retryable_one_is_tried_once(env):
    tried.clear()

    async def body():
        try:
            await hopeless()
        except errors.ActivityFailure as failure:
            return [failure.type, failure.attempts]

    assert env.start(once(body), id="once").result() == ["ApplicationError", 1]
    assert len(tried) == 1


@pytest.mark.parametrize("unexpected_error", [None, "fail"])
def test_without_it_the_run_fails_as_ever(env, unexpected_error):
    async def body():
        raise KeyError("vat")

    h = env.start(once(body, unexpected_error=unexpected_error), id="fails")

    with pytest.raises(errors.WorkflowFailed, match="KeyError: 'vat'"):
        h.result()


def test_err_and_continue_as_new_are_no_errors(env):
    async def run(self, args):
        return ContinueAsNew(True) if not args else Err("no")

    cls = type("Ends", (Workflow,), {"run": run, "name": "test.UnexpectedEnds", "unexpected_error": "block"})

    with pytest.raises(errors.WorkflowFailed, match="no"):
        env.start(cls, False, id="ends").result()


def test_a_run_that_failed_before_the_class_blocked_still_replays(env):
    async def body():
        raise KeyError("vat")

    h = env.start(once(body, name="test.UnexpectedBefore"), id="before")
    assert h.status == "failed"

    env.replay_history(once(body, name="test.UnexpectedBefore", unexpected_error="block"), h.history())


def test_atomic_activities_of_the_activation_are_undone(env):
    async def run(self, args):
        await atomic()
        if not RIGHT["is"]:
            raise KeyError("vat")
        return Ok(1)

    @activity(atomic=True)
    def atomic():
        return 1

    cls = type("Atomic", (Workflow,), {"run": run, "name": "test.UnexpectedAtomic", "unexpected_error": "block"})
    with pytest.raises(KeyError):
        env.start(cls, id="atomic")
    h = env.handle("atomic")
    assert events(h, "ActivityCompleted") == []

    RIGHT["is"] = True
    env.advance(0)

    assert h.result() == 1


def test_a_wrong_value_of_the_attribute_is_refused():
    with pytest.raises(WorkflowDefinitionError, match="unexpected_error"):
        once(None, unexpected_error="ignore")


# -- sagas: a bug inside undoes nothing


def saga(body, *, catch=False, name="test.UnexpectedSaga", **attributes):
    """A flow that books inside a saga; then ``body()`` runs, which raises as long as the code is wrong."""

    async def inside():
        async with api.saga() as undo:
            undo.add(other, "undo")
            booked = await work("booked")
            await body()
        return booked

    async def run(self, args):
        try:
            return Ok(await inside())
        except BaseException as error:
            if not catch:
                raise
            return Ok(f"caught {type(error).__name__}")
        finally:
            await work("finally")

    return flow(run, name=name, **{"unexpected_error": "block", **attributes})


async def bug():
    if not RIGHT["is"]:
        raise ValueError("a bug")


@pytest.mark.parametrize("catch", [False, True])
def test_a_bug_in_a_saga_blocks_before_a_compensation(env, catch):
    with pytest.raises(ValueError, match="a bug"):
        env.start(saga(bug, catch=catch), id="saga")
    h = env.handle("saga")
    assert isinstance(h.blocked, ValueError)
    assert [attributes["args"] for attributes in events(h, "ActivityScheduled")] == [["booked"]]
    assert "ActivityCompleted" not in kinds(h)

    RIGHT["is"] = True
    env.advance(0)

    assert h.result() == "booked"
    assert [attributes["args"] for attributes in events(h, "ActivityScheduled")] == [["booked"], ["finally"]]


def in_branches(body):
    async def branches():
        await api.parallel([body, work(1)])

    return branches


def in_race(body):
    async def racing():
        await api.race(body, api.sleep(60))

    return racing


def in_shield(body):
    async def shielded():
        async with api.shield():
            await body()

    return shielded


def in_another_saga(body):
    async def nested():
        async with api.saga() as undo:
            undo.add(other, "undo the outer")
            await body()

    return nested


@pytest.mark.parametrize("place", [in_branches, in_race, in_shield, in_another_saga])
def test_a_saga_blocks_wherever_it_is(env, place):
    async def booking():
        async with api.saga() as undo:
            undo.add(other, "undo")
            await work("booked")
            await bug()

    with pytest.raises(ValueError, match="a bug"):
        env.start(once(place(booking), name="test.UnexpectedPlace", unexpected_error="block"), id="place")
    h = env.handle("place")
    assert h.blocked is not None
    assert ["undo"] not in [attributes["args"] for attributes in events(h, "ActivityScheduled")]

    RIGHT["is"] = True
    env.advance(60)

    assert h.status == "completed"
    assert ["undo"] not in [attributes["args"] for attributes in events(h, "ActivityScheduled")]


@pytest.mark.parametrize("body", [by_activity, by_child, on_purpose])
def test_failures_on_purpose_compensate(env, body):
    h = env.start(saga(body), id="purpose")

    assert h.status == "failed"
    assert ["undo"] in [attributes["args"] for attributes in events(h, "ActivityScheduled")]


def test_a_cancel_compensates(env):
    async def forever():
        await api.sleep(3600)

    h = env.start(saga(forever), id="cancelled")
    h.cancel()

    assert h.status == "cancelled"
    assert ["undo"] in [attributes["args"] for attributes in events(h, "ActivityScheduled")]


@pytest.mark.parametrize("unexpected_error", [None, "fail"])
def test_without_it_every_exception_compensates(env, unexpected_error):
    h = env.start(saga(bug, unexpected_error=unexpected_error), id="compensates")

    assert h.status == "failed"
    assert [attributes["args"] for attributes in events(h, "ActivityScheduled")] == [["booked"], ["undo"], ["finally"]]


def test_a_saga_that_compensated_before_the_class_blocked_still_replays(env):
    h = env.start(saga(bug, unexpected_error=None), id="compensated")
    assert h.status == "failed"

    env.replay_history(saga(bug), h.history())


def test_err_inside_a_saga_compensates_nothing(env):
    async def run(self, args):
        async with api.saga() as undo:
            undo.add(other, "undo")
            return Err("no")

    h = env.start(flow(run, unexpected_error="block"), id="err")

    assert h.status == "failed"
    assert events(h, "ActivityScheduled") == []


@pytest.mark.parametrize("kind", ["signal", "update"])
def test_a_saga_of_a_handler_blocks_before_a_compensation(env, kind):
    async def booking():
        async with api.saga() as undo:
            undo.add(other, "undo")
            await work("booked")
            await bug()
        return "booked"

    async def run(self, args):
        book = {"book": lambda payload, state: Async(booking, payload)}
        stop = {"stop": lambda payload, state: Stop(state)}
        signals, updates = (stop | book, None) if kind == "signal" else (stop, book)
        return Ok(await api.phase(None, signal=signals, update=updates))

    h = env.start(flow(run, name="test.UnexpectedHandler", unexpected_error="block"), id="handler")
    with pytest.raises(ValueError, match="a bug"):
        h.signal("book", 7) if kind == "signal" else h.update("book", 7)
    assert h.blocked is not None

    RIGHT["is"] = True
    env.advance(0)
    h.signal("stop")

    assert h.result() == 7
    assert [attributes["args"] for attributes in events(h, "ActivityScheduled")] == [["booked"]]


@pytest.mark.hosts("memory", "database")
def test_a_system_exit_blocks_and_ends_no_process(env):
    async def body():
        raise SystemExit(3)

    with pytest.raises(errors.UnexpectedError, match="SystemExit"):
        env.start(once(body, unexpected_error="block"), id="exit")
    RIGHT["is"] = True
    env.handle("exit").terminate()


@pytest.mark.hosts("memory", "database")
def test_a_title_that_does_not_fit_is_shortened(env):
    async def body():
        await api.approval("line one " + "x" * 500, role="auth.change_group")

    h = env.start(once(body), id="title")

    (task,) = h.human_tasks()
    assert task.title.startswith("line one xxx")
    assert len(task.title) == 200
