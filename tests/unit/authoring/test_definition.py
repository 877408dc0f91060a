"""What is wrong with a class is said when it is defined, all at once, and an invalid one is never registered."""

from __future__ import annotations

import pytest

from temporalex_django import Ok, Workflow, api, errors, query, update
from temporalex_django.authoring import workflow
from temporalex_django.authoring.definition import edit_distance
from tests.support.runs import flow


async def run(self, args):
    return Ok(args)


def define(**attributes):
    return flow(attributes.pop("run", run), **attributes)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ({"task_queu": "a"}, "task_queue"),
        ({"taks_queue": "a"}, "task_queue"),
        ({"vesion": 2}, "version"),
        ({"verison": 2}, "version"),
        ({"run_timeot": 5}, "run_timeout"),
        ({"execution_timeouts": 5}, "execution_timeout"),
        ({"uniqe": None}, "unique"),
        ({"tag": ["a"]}, "tags"),
        ({"meta_data": {}}, "metadata"),
        ({"rnu": run}, "run"),
        ({"handle_querry": run}, "handle_query"),
        ({"queue": "slow"}, "task_queue"),
    ],
)
def test_an_attribute_that_is_nearly_one_of_ours_is_refused(wrong, meant):
    with pytest.raises(errors.WorkflowDefinitionError, match=f"did you mean '{meant}'"):
        define(**wrong)


@pytest.mark.parametrize("name", ["total", "stage", "pages", "sum", "items", "charge_card", "steps", "args", "_versio"])
def test_other_attributes_are_the_users_own(name):
    assert define(**{name: 1}).name == "Flow"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tags": ["a", "b\x00"]}, r"tags 'b\\x00' cannot be stored: it has a NUL"),
        ({"tags": ("\ud800",)}, r"tags '\\ud800' cannot be stored: it has a NUL character or half of a surrogate pair"),
        ({"metadata": {"a": [{"b": "c\x00"}]}}, r"metadata at a\[0\].b 'c\\x00' cannot be stored"),
        ({"metadata": {"a": {"b\x00": 1}}}, r"metadata at a: the key 'b\\x00' cannot be stored"),
        (
            {"task_queue": "a\x00"},
            r"task_queue 'a\\x00' \(U\+0000 CONTROL CHARACTER at position 2\) must be a string of 1 to 200 printable characters",
        ),
    ],
)
def test_a_text_that_no_column_can_keep_is_refused(wrong, said):
    with pytest.raises(errors.WorkflowDefinitionError, match=f"^workflow Flow: .*{said}"):
        define(**wrong)


def test_everything_is_said_at_once_and_nothing_is_registered():
    def not_async(self, args):
        return Ok(1)

    with pytest.raises(errors.WorkflowDefinitionError) as caught:
        type(
            "Hopeless",
            (Workflow,),
            {
                "run": not_async,
                "version": 0,
                "vresion": 2,
                "start": lambda self: None,
                "one": query("status")(lambda state: 1),
                "two": query("status")(lambda state: 2),
                "three": query("size")(lambda: 3),
            },
        )
    said = str(caught.value)
    assert "run must be an `async def` method" in said
    assert "version 0 must be a whole number" in said
    assert "did you mean 'version'" in said
    assert "start is reserved by the library: give the attribute another name" in said
    assert "two functions answer the query 'status'" in said
    assert "the query 'size' must be callable as (state) or (state, args)" in said
    assert "Hopeless" not in workflow.registry


def test_handlers_that_cannot_take_args_and_state_are_refused_together(env):
    async def phased(self, args):
        await api.phase(
            0,
            signal={"none": lambda: None, "one": lambda a: None, "fine": lambda a, s, extra=1: None},
            update={"three": lambda a, b, c: None, "judged": update(lambda a, s: None, validator=lambda a: None)},
        )

    h = env.start(flow(phased))
    with pytest.raises(errors.WorkflowFailed) as caught:
        h.result()
    said = str(caught.value)
    assert "WorkflowDefinitionError" in said
    for name in ("signal 'none'", "signal 'one'", "update 'three'", "validator of update 'judged'"):
        assert name in said
    assert "'fine'" not in said


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [("", "ab", 2), ("run", "run", 0), ("rnu", "run", 1), ("task", "tags", 2), ("kitten", "sitting", 3)],
)
def test_distance_counts_typing_errors(a, b, expected):
    assert edit_distance(a, b) == edit_distance(b, a) == expected
