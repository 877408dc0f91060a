"""Two definitions of one name: only the one that workers would run can be called, started and scheduled."""

from __future__ import annotations

import importlib
import inspect
import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest

from temporalex_django import Ok, Schedule, VersionedWorkflow, Workflow, activity, api, errors
from tests.support.runs import flow, forget, once

HERE = __name__


def scaler(factor):
    @activity
    def scale(x):
        return x * factor

    return scale


def by_default(factor):
    @activity
    def scale_by_default(x, factor=factor):
        return x * factor

    return scale_by_default


def by_loop():
    made = []
    for factor in (2, 3):

        @activity(name="test.redefined_in_a_loop")
        def scale(x, factor=factor):
            return x * factor

        made.append(scale)
    return made


def by_class(factor):
    class Scale(Workflow):
        name = "test.RedefinedScale"
        by = factor

        async def run(self, args):
            return Ok(args * self.by)

    return Scale


def by_closure(factor):
    class Scale(Workflow):
        name = "test.RedefinedScaleOfClosure"

        async def run(self, args):
            return Ok(args * factor)

    return Scale


def refused(env, call, *places):
    """The flow ``call()`` fails, and the message names both places and the way out."""
    with pytest.raises(errors.WorkflowFailed, match="WorkflowDefinitionError") as failed:
        env.start(once(call, name="test.RedefinedCaller")).result()
    check(str(failed.value), *places)


def check(message, *places):
    assert "name=" in message
    for place in places or [HERE]:
        assert place in message
    assert "line" in message


@pytest.mark.parametrize("make", [lambda: [scaler(2), scaler(3)], lambda: [by_default(2), by_default(3)], by_loop])
def test_the_earlier_product_of_a_factory_is_refused(env, make):
    double, triple = make()
    assert env.start(once(lambda: triple(10), name="test.RedefinedCaller")).result() == 30
    line = inspect.getsourcelines(double.__wrapped__)[1]

    refused(env, lambda: double(10), f"{HERE}, line {line}")
    refused(env, lambda: double.options(start_to_close=5)(10))


def test_products_with_equal_values_are_the_same_code(env):
    first, second = scaler(4), scaler(4)

    async def both():
        return [await first(10), await second(10), await first.options(start_to_close=5)(10)]

    assert env.start(once(both, name="test.RedefinedCaller")).result() == [40, 40, 40]


def test_products_that_share_no_list_differ(env):
    def logging():
        log = []

        @activity
        def write(x):
            log.append(x)
            return len(log)

        return write

    first, second = logging(), logging()
    assert env.start(once(lambda: second(1), name="test.RedefinedCaller")).result() == 1
    refused(env, lambda: first(1))


def test_options_of_one_call_are_no_other_code(env):
    def queued(queue):
        @activity(queue=queue)
        def push(x):
            return x

        return push

    first, _ = queued("default"), queued("redefined")
    assert env.start(once(lambda: first(1), name="test.RedefinedCaller")).result() == 1


def test_an_explicit_name_in_two_places_is_refused(env):
    @activity(name="test.redefined_explicitly")
    def one():
        return 1

    @activity(name="test.redefined_explicitly")
    def two():
        return 2

    assert env.start(once(two, name="test.RedefinedCaller")).result() == 2
    lines = [inspect.getsourcelines(one_of.__wrapped__)[1] for one_of in (one, two)]
    refused(env, one, *(f"line {line}" for line in lines))


@pytest.mark.parametrize("make", [by_class, by_closure])
def test_a_class_that_was_replaced_cannot_be_started(env, make):
    double, triple = make(2), make(3)

    assert env.start(triple, 10).result() == 30
    for use in (
        lambda: env.start(double, 10),
        lambda: env.start_many(double, [10]),
        lambda: Schedule("test-redefined", double, every=timedelta(hours=1)),
    ):
        with pytest.raises(errors.WorkflowDefinitionError) as error:
            use()
        check(str(error.value))
    refused(env, lambda: api.child(double, 10))


def test_a_schedule_whose_class_is_replaced_later_is_refused():
    schedule = Schedule("test-redefined-later", by_class(2), every=timedelta(hours=1))
    by_class(3)

    with pytest.raises(errors.WorkflowDefinitionError, match="name="):
        schedule.check(datetime(2026, 1, 1, tzinfo=UTC))


def test_a_class_made_by_a_function_that_is_called_again_can_be_started(env):
    by_class(2)
    assert env.start(by_class(2), 10).result() == 20
    first = by_class(2)
    by_class(2)
    assert env.start(first, 10).result() == 20


def test_versions_are_started_through_their_dispatcher(env):
    def define(factor):
        class Scale(VersionedWorkflow):
            name = "test.RedefinedVersions"

            class First(Workflow):
                version = 1

                async def run(self, args):
                    return Ok(args * factor)

            versions = {1: First}
            current = 1

        return Scale

    double, triple = define(2), define(3)

    assert env.start(triple, 10).result() == 30
    with pytest.raises(errors.WorkflowDefinitionError, match="name="):
        env.start(double, 10)


def test_an_old_history_replays_by_name(env):
    double = scaler(2)
    caller = once(lambda: double(10), name="test.RedefinedReplay")
    h = env.start(caller)
    assert h.result() == 20
    scaler(3)

    env.replay_history(caller, h.history())


def test_code_that_catches_the_error_replays(env):
    double, _ = scaler(2), scaler(3)

    async def body():
        caught = 0
        for _ in range(2):
            try:
                await double(10)
            except errors.WorkflowDefinitionError:
                caught += 1
        await api.wait_for_signal("go")
        return caught

    h = env.start(once(body, name="test.RedefinedCaught"))
    forget(env)
    h.signal("go")

    assert h.result() == 2


def test_an_open_run_goes_on_by_name(env):
    async def run(self, args):
        before = await double(10)
        await api.wait_for_signal("go")
        return Ok(before)

    double = scaler(2)
    h = env.start(flow(run, name="test.RedefinedOpen"))
    scaler(3)
    forget(env)
    h.signal("go")

    assert h.result() == 20


SOURCE = """
from temporalex_django import Ok, Workflow, activity

@activity
def greet():
    return {answer!r}

class Greeting(Workflow):
    name = "test.RedefinedGreeting"
    greeting = {answer!r}
    async def run(self, args):
        return Ok(await greet())
"""


@pytest.fixture
def module(tmp_path, monkeypatch) -> ModuleType:
    """A module that can be written again and reloaded."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "redefined_by_reload.py"

    def write(answer):
        path.write_text(SOURCE.format(answer=answer))
        importlib.invalidate_caches()

    write("hello")
    imported = importlib.import_module(path.stem)
    imported.write = write
    yield imported
    sys.modules.pop(path.stem, None)


def test_a_reference_from_before_a_reload_works(env, module):
    greet, cls, write = module.greet, module.Greeting, module.write
    write("good evening")
    importlib.reload(module)

    assert greet is not module.greet
    assert env.start(once(greet, name="test.RedefinedCaller")).result() == "good evening"
    assert env.start(cls).result() == "good evening"
    assert env.start(module.Greeting).result() == "good evening"
