"""An exception that escapes ``run`` and that nobody raised on purpose: it fails the run, or blocks it."""

from __future__ import annotations

import pytest

from temporalex_django import ContinueAsNew, Err, Ok, RetryPolicy, Workflow, activity, api, errors
from temporalex_django.errors import WorkflowDefinitionError
from tests.support.runs import broken, events, kinds, once, work

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
