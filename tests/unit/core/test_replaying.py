"""Hosts that execute the past again by activations (``Activation.replaying``), instead of replaying events."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from temporalex_django import Err, NoReply, Ok, Reply, Stop, Unique, api, errors, signal, update
from temporalex_django.core.executor import Executor
from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.activation import (
    Activation,
    DeliveryRecord,
    RunInfo,
    activation_events,
    split_activations,
)
from temporalex_django.core.history.events import Job, is_external_close
from temporalex_django.core.messages.phase import HandlerFixed
from temporalex_django.graph import Done, GraphWorkflow, WaitForEvent, event
from tests.histories.test_histories import FILES, stored
from tests.support.runs import flow, once, other, work

NOW = datetime(2026, 1, 1, tzinfo=UTC)
START = {"args": None, "seed": 1}
FAILURE = {"number": 1, "id": "r:1", "name": "add", "untouched": True, "type": "ValueError", "message": "no"}


def executor_of(cls):
    return Executor(cls.definition, RunInfo(workflow=cls.name, id="past", run_id="r", version=1))


def again(*jobs, **options):
    return Activation(now=NOW, start=START, jobs=jobs, replaying=True, **options)


def an_update(update_id, **attributes):
    return Job("UpdateRequested", {"id": update_id, "name": "add", "args": 1, "after": None, **attributes})


def never(*_):
    pytest.fail("the past asks nobody")


# -- stored histories --------------------------------------------------------------------------------------------------


def deliveries(recorded, received):
    """The jobs with which a host that keeps messages delivers an activation again, and the signals before it."""
    activation = recorded.activation
    carried = (activation.start or {}).get("carried", 0)
    jobs = [job for job in activation.jobs if job.kind != "SignalReceived"]
    signals = [job for job in activation.jobs if job.kind == "SignalReceived"]
    accepted = [kinds.UPDATE_ACCEPTED.read(e) for e in recorded.outputs if e.kind == "UpdateAccepted"]
    updates = sorted(accepted, key=lambda u: u["after"])
    waiting = [u for u in updates if u["after"] < received + carried]
    jobs += [Job("UpdateRequested", dict(u)) for u in waiting] + signals[:carried]
    for count, delivered in enumerate([*signals[carried:], None], start=received + carried):
        jobs += [Job("UpdateRequested", {**u, "after": None}) for u in updates if u["after"] == count]
        jobs += [] if delivered is None else [delivered]
    return jobs, received + len(signals)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_stored_history_executes_again_activation_by_activation(path):
    """TX-178: the host that keeps messages gets the same commands, and makes the same events of them."""
    definition, events = stored(path)
    facts = events[0].attributes
    info = RunInfo(workflow=facts["workflow"], id=facts["id"], run_id=facts["run_id"], version=1)
    executor = Executor(definition, info, skip_failed=True)
    executor.expect_markers(kinds.PATCH_MARKED.read(e)["id"] for e in events if e.kind == "PatchMarked")
    stamps = (kinds.ACTIVATION_STARTED.read(e) for e in events if e.kind == "ActivationStarted")
    received, rebuilt = 0, []
    for recorded in split_activations(events):
        jobs, received = deliveries(recorded, received)
        activation = replace(recorded.activation, jobs=tuple(jobs))
        completion = executor.activate(activation, is_budget_spent=never, judge=never)
        kinds.check_commands(recorded.outputs, completion.commands, run="run", place_of=executor.place_of, readers={})
        assert completion.delivery == recorded.activation.delivery
        host_stamp = {"head": next(stamps)["head"]}
        host_stamp |= {"admit_updates": True} if activation.admit_updates else {}
        host_stamp |= {} if activation.max_pending is None else {"max_pending": activation.max_pending}
        rebuilt += activation_events(completion, start=activation.start, stamp=host_stamp)
    executor.evict()
    stored_events = [e for e in events if not is_external_close(e.kind, e.attributes)]
    assert [plain(*pair) for pair in rebuilt] == [plain(e.kind, e.attributes) for e in stored_events]


def plain(kind, attributes):
    """Without the places and the words of errors, which may change."""
    return kind, {name: value for name, value in attributes.items() if name not in ("traceback", "message")}


# -- what only the first execution does --------------------------------------------------------------------------------


@pytest.mark.parametrize(("marked", "takes"), [(True, "new"), (False, "old")])
def test_patches_answer_as_the_markers_of_the_history_say(marked, takes):
    """TX-033."""

    async def body():
        return "new" if api.patched("change") else "old"

    executor = executor_of(once(body))
    executor.expect_markers(["change"] if marked else [])
    assert executor.activate(again()).commands[-1].attributes == {"result": takes}


def test_a_patch_is_new_again_once_the_past_is_over():
    async def run(self, args):
        await api.wait_for_signal("go")
        return Ok(api.patched("change"))

    executor = executor_of(flow(run))
    executor.activate(again())
    completion = executor.activate(Activation(now=NOW, jobs=(Job("SignalReceived", {"name": "go", "payload": 1}),)))
    assert [c.kind for c in completion.commands] == ["SetPatchMarker", "CompleteWorkflow"]


def test_nobody_is_judged_and_no_validator_runs():
    """The update and the signal were permitted when they came."""

    async def run(self, args):
        take = update(lambda n, s: Reply(n, s + n), permission="app.add", validator=never)
        note = signal(lambda n, s: NoReply(s + n), permission="app.note")
        return Ok(await api.phase(0, update={"add": take}, signal={"note": note}))

    anna = {"sender": {"key": "1", "name": "anna"}}
    jobs = an_update("u", **anna), Job("SignalReceived", {"name": "note", "payload": 2, **anna})
    executor = executor_of(flow(run))
    completion = executor.activate(again(*jobs), judge=never)
    assert (completion.rejected, completion.refused) == ([], [])
    assert [c.kind for c in completion.commands] == ["AcceptUpdate", "CompleteUpdate"]
    assert [job.kind for job in completion.jobs] == ["SignalReceived"]


def test_the_same_update_is_judged_in_the_present():
    async def run(self, args):
        take = update(lambda n, s: Reply(n, s + n), permission="app.add")
        return Ok(await api.phase(0, update={"add": take}))

    executor = executor_of(flow(run))
    executor.activate(again())
    job = an_update("u", sender={"key": "1", "name": "anna"})
    completion = executor.activate(Activation(now=NOW, jobs=(job,)), judge=lambda *_: False)
    assert [type(error) for _, error in completion.rejected] == [errors.ActionNotPermitted]


def test_nothing_is_logged(caplog):
    """TX-188: neither by code, nor about a handler that fails, nor about the run."""

    def fails(_, __):
        raise ValueError("no")

    async def run(self, args):
        api.logger.error("in the past")
        await api.phase(0, update={"add": fails}, signal={"stop": lambda _, s: Stop(s)})
        raise errors.ApplicationError("over")

    caplog.set_level(logging.DEBUG, "temporalex_django")
    jobs = an_update("u"), Job("SignalReceived", {"name": "stop", "payload": None})
    assert executor_of(flow(run)).activate(again(*jobs)).closed == "FailWorkflow"
    assert caplog.messages == []
    executor_of(flow(run)).activate(replace(again(*jobs), replaying=False))
    assert len(caplog.messages) == 3


def test_an_accepted_update_that_the_code_does_not_take_is_named():
    async def run(self, args):
        return Ok(await api.phase(0, update={"other": lambda n, s: Reply(n, s)}))

    with pytest.raises(errors.NondeterminismError, match="accepted the update 'add'"):
        executor_of(flow(run)).activate(again(an_update("u")))


def test_a_handler_that_failed_and_works_now_asks_for_another_replay():
    async def run(self, args):
        return Ok(await api.phase(0, signal={"add": lambda n, s: Stop(s + n)}))

    job = Job("SignalReceived", {"name": "add", "payload": 1})
    with pytest.raises(HandlerFixed):
        executor_of(flow(run)).activate(again(job, delivery=DeliveryRecord(failed={1: FAILURE})))


def test_a_handler_that_failed_after_an_effect_must_fail_again():
    async def run(self, args):
        return Ok(await api.phase(0, signal={"add": lambda n, s: NoReply(s + n)}))

    job = Job("SignalReceived", {"name": "add", "payload": 1})
    recorded = DeliveryRecord(failed={1: {**FAILURE, "untouched": False}})
    with pytest.raises(errors.NondeterminismError, match="handler of signal 1 .* failed"):
        executor_of(flow(run)).activate(again(job, delivery=recorded))


def test_no_input_is_remembered_for_a_comparison_that_does_not_come():
    async def body():
        return await api.parallel([lambda: work(1), lambda: other(2)])

    executor = executor_of(once(body))
    assert [c.kind for c in executor.activate(again()).commands] == ["ScheduleActivity"] * 2
    assert executor.pending_commands.readers == {}


# -- what a host records beside the events -----------------------------------------------------------------------------


async def guarded(self, args):
    await api.wait_for_signal("open")
    note = signal(lambda n, s: NoReply([*s, n]), permission="app.note")
    return Ok(await api.phase([], signal={"note": note, "stop": lambda _, s: Stop(s)}))


def sent(name, payload=None, key=None):
    by = {} if key is None else {"sender": {"key": key, "name": key}}
    return Job("SignalReceived", {"name": name, "payload": payload, **by})


def judge(key, permission, message):
    return key == "anna"


def written(completion):
    return DeliveryRecord.from_data(json.loads(json.dumps(completion.delivery.to_data())))


def test_a_signal_refused_on_arrival_is_refused_again_where_it_is_delivered_again():
    """By its place among the signals, although the judge of today would permit it."""
    cls, jobs = flow(guarded), (sent("open"), *[sent("note", n, key) for n, key in enumerate(["eve", "anna", "eve"])])
    executor, past = executor_of(cls), executor_of(cls)
    first = executor.activate(Activation(now=NOW, start=START, jobs=jobs), judge=judge)
    assert [(refusal.arrival, refusal.number) for refusal in first.refused] == [(2, None), (4, None)]
    assert first.delivery.to_data() == {"refused_arrivals": [2, 4]} and first.delivery.stamp() == {}
    repeated = past.activate(again(*jobs, delivery=written(first)), judge=never)
    assert (repeated.jobs, repeated.refused, repeated.delivery) == (first.jobs, [], first.delivery)
    for each in (executor, past):
        each.activate(Activation(now=NOW, jobs=(sent("note", 5),)))
        last = each.activate(Activation(now=NOW, jobs=(sent("stop"),)))
        assert last.commands[-1].attributes == {"result": [1, 5]} and last.delivery == DeliveryRecord()


def test_a_signal_refused_by_a_phase_has_its_number_among_the_signals():
    cls, jobs = flow(guarded), (sent("note", 1, "eve"), sent("note", 2, "anna"), sent("open"), sent("stop"))
    first = executor_of(cls).activate(Activation(now=NOW, start=START, jobs=jobs), judge=judge)
    assert first.delivery.to_data() == first.delivery.stamp() == {"refused": [1]}
    repeated = executor_of(cls).activate(again(*jobs, delivery=written(first)))
    assert repeated.commands == first.commands and repeated.commands[-1].attributes["result"] == [2]
    kept, rebuilt = (list(activation_events(each, start=None, stamp={"head": 7})) for each in (first, repeated))
    assert kept == rebuilt and kept[0] == ("ActivationStarted", {"head": 7, "refused": [1]})


def test_an_activation_that_had_enough_ends_where_it_ended():
    """The host does not say again that it has enough."""

    async def run(self, args):
        await api.wait_for_signal("go")
        return Ok(await api.phase([], signal={"note": lambda n, s: NoReply([*s, n])}))

    cls, jobs = flow(run), (*[sent("note", n) for n in range(5)], sent("go"))
    taken = iter([False] * len(jobs) + [False, True])
    first = executor_of(cls).activate(Activation(now=NOW, start=START, jobs=jobs), is_budget_spent=lambda: next(taken))
    assert first.delivery.to_data() == {"dispatched": first.delivery.dispatched} and 0 < first.delivery.dispatched < 5
    executor = executor_of(cls)
    repeated = executor.activate(again(*jobs, delivery=written(first)), is_budget_spent=never)
    assert (repeated.delivery, executor.unfinished) == (first.delivery, True)


def test_a_failed_signal_is_failed_again_and_reported_once():
    def fails(_, __):
        raise ValueError("no")

    async def run(self, args):
        return Ok(await api.phase(0, signal={"note": fails}))

    first = executor_of(flow(run)).activate(Activation(now=NOW, start=START, jobs=(sent("note"),)))
    assert [failed.number for failed in first.failed] == [1] and first.delivery.to_data() == {
        "failed": [first.failed[0].event_attributes()]
    }
    repeated = executor_of(flow(run)).activate(again(sent("note"), delivery=written(first)))
    assert (repeated.failed, repeated.delivery) == ([], first.delivery)


# -- what the history has accepted -------------------------------------------------------------------------------------


def accepted(job):
    return job._replace(attributes={**job.attributes, "accepted": True})


def a_request(event, **request):
    facts = {"event": event, "step": None, "data": None, "by": "eve", "by_key": "2", **request}
    sender = {"sender": {"key": "2", "name": "eve"}}
    return Job("ResumeRequested", {"id": "q", "request": facts, **sender})


def test_an_update_that_the_history_has_accepted_is_not_judged_in_the_present_either():
    async def run(self, args):
        take = update(lambda n, s: Reply(n, s + n), permission="app.add", validator=never)
        return Ok(await api.phase(0, update={"add": take}))

    job = accepted(an_update("u", sender={"key": "2", "name": "eve"}))
    completion = executor_of(flow(run)).activate(Activation(now=NOW, start=START, jobs=(job,)), judge=never)
    assert [c.kind for c in completion.commands] == ["AcceptUpdate", "CompleteUpdate"] and completion.rejected == []


def test_an_accepted_update_that_nothing_takes_is_named_in_the_present_too():
    executor = executor_of(once(lambda: api.wait_for_signal("go")))
    with pytest.raises(errors.NondeterminismError, match="accepted the update 'add'"):
        executor.activate(Activation(now=NOW, start=START, jobs=(accepted(an_update("u")),)))


def even(data, context):
    return Err("odd") if data % 2 else None


SCORED = event("scored", data=int, validator=even, permission="app.may")
WAIT = WaitForEvent(SCORED, key="wait")


class Scores(GraphWorkflow):
    unique = Unique(key="run")
    initial = WAIT
    transitions = {(WAIT, "scored"): Done}


async def approves(self, args):
    return Ok((await api.approval("May it go?", role="app.may", outcomes=["yes", "no"])).outcome)


@pytest.mark.parametrize("replaying", [False, True])
@pytest.mark.parametrize(
    ("cls", "job"),
    [(Scores, a_request("scored", data=2)), (flow(approves), a_request("yes", step="1"))],
    ids=["resume", "decision"],
)
def test_a_request_becomes_the_same_without_being_judged_again(cls, job, replaying):
    """Who may is asked once. What the request becomes follows from the state, so it is made again."""
    first = executor_of(cls).activate(Activation(now=NOW, start=START, jobs=(job,)), judge=lambda *_: True)
    assert first.granted == ["q"] and [j.kind for j in first.jobs] == ["SignalReceived"]
    repeated = Activation(now=NOW, start=START, jobs=(accepted(job),), replaying=replaying)
    completion = executor_of(cls).activate(repeated, judge=never)
    assert (completion.jobs, completion.commands, completion.granted) == (first.jobs, first.commands, ["q"])


def test_a_validator_is_asked_once():
    odd = a_request("scored", data=3)
    refused = executor_of(Scores).activate(Activation(now=NOW, start=START, jobs=(odd,)), judge=lambda *_: True)
    assert [type(error) for _, error in refused.rejected] == [errors.UpdateRejected] and refused.granted == []
    taken = executor_of(Scores).activate(Activation(now=NOW, start=START, jobs=(accepted(odd),)), judge=never)
    assert (taken.rejected, taken.granted) == ([], ["q"])


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (a_request("yes", step="7"), "accepted the request 'yes', but the code does not take it"),
        (a_request("yes", step="1", question={"title": "Another?"}), "now asks a different question"),
    ],
)
def test_an_accepted_decision_that_does_not_belong_to_the_task_is_named(job, words):
    executor = executor_of(flow(approves))
    with pytest.raises(errors.NondeterminismError, match=words):
        executor.activate(Activation(now=NOW, start=START, jobs=(accepted(job),)))
