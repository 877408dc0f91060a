"""A word that is planted in every input stands in no log record of any level, in no trace, and not in doctor."""

from __future__ import annotations

import io
import logging
import traceback

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from prometheus_client import generate_latest

from temporalex_django import Ok, RetryPolicy, Workflow, WorkflowHandle, activity, api, errors, signal, update
from temporalex_django.contrib import exporters
from temporalex_django.interceptors.chain import chain
from tests.support.client_flows import drain
from tests.support.people import stored
from tests.support.spans import Spans

pytestmark = pytest.mark.django_db(transaction=True)
WORD = "xylophone"
MAY = "auth.change_group"


@activity(retry=RetryPolicy(max_attempts=1))
def fail_with(text):
    raise LookupError(f"no account for {text}")


@activity(retry=RetryPolicy(max_attempts=1), queue="planted")
def find_class(text):
    raise errors.UnknownWorkflow(f"no workflow {text!r}")


@activity(retry=RetryPolicy(max_attempts=1))
def configure(text):
    raise errors.NotConfigured(f"no settings for {text!r}")


@activity(retry=RetryPolicy(max_attempts=1))
def search_by_text(text):
    with connection.cursor() as cursor:
        cursor.execute(f"select {text}" if connection.vendor == "sqlite" else f"select error_in_{text}()")


@activity(retry=RetryPolicy(max_attempts=1), atomic=True)
def connect_as(text):
    raise OperationalError(f"password of {text!r} refused")


class Child(Workflow):
    name = "planted.Child"

    async def run(self, args):
        return Ok(None)


def _reject(args, state):
    raise ValueError(f"bad {args}")


def _break(args, state):
    raise KeyError(f"broken by {args}")


def _ask(args, state):
    raise errors.WorkflowDefinitionError(f"not a name: {args}")


class Planted(Workflow):
    """Does what its argument says, with the word in every name and text that code can make of data."""

    name = "planted.Planted"
    search_attributes = {"customer": str, "amount": int}

    async def run(self, args):
        await WAYS[args["way"]](args["word"])
        return Ok(None)


class Blocking(Planted):
    name = "planted.Blocking"
    unexpected_error = "block"


async def _open(word):
    api.set_search_attributes({"customer": word})
    await api.sleep(0.001, then=f"pay {word}")
    await api.phase(
        0,
        signal={"go": signal(_break), "stop": lambda args, state: (Ok(None), state)},
        update={
            "reject": update(_break, validator=_reject),
            "break": update(_break),
            "fault": update(_break, validator=_break),
            "define": update(_break, validator=_ask),
        },
        label=f"wait for {word}",
    )


async def _raise(word):
    raise ValueError(word)


WAYS = {
    "open": _open,
    "activity": fail_with,
    "configure": configure,
    "search": search_by_text,
    "connect": connect_as,
    "title": lambda word: api.approval(f"Approve {word}", role=MAY),
    "nobody": lambda word: api.approval(f"Approve {word}"),
    "user": lambda word: api.approval("Approve it", users=[f"{word}\n"]),
    "group": lambda word: api.approval("Approve it", groups=[f"{word}\n"]),
    "role": lambda word: api.approval("Approve it", role=f"{word}\n"),
    "outcome": lambda word: api.approval("Approve it", role=MAY, outcomes=[word, word]),
    "four_eyes": lambda word: api.approval("Approve it", role=MAY, four_eyes=word),
    "form": lambda word: api.approval("Approve it", role=MAY, form=word),
    "signal": lambda word: api.wait_for_signal(f"__{word}"),
    "external": lambda word: api.signal_external(Planted, "somebody", f"__{word}"),
    "version": lambda word: api.child(Child, version=word),
    "child": lambda word: api.child(word),
    "branch": lambda word: api.parallel(word),
    "attribute": lambda word: _open_with(amount=word),
    "unknown_attribute": lambda word: _open_with(**{word: 1}),
    "raise": _raise,
}


async def _open_with(**attributes):
    api.set_search_attributes(attributes)


@pytest.fixture
def texts(caplog):
    caplog.set_level(logging.DEBUG)

    def read():
        lines = []
        for record in caplog.records:
            if record.name.startswith("django.db") or record.name.startswith("asyncio"):
                continue
            extra = {name: value for name, value in vars(record).items() if name not in ("msg", "args", "exc_info")}
            lines.append(f"{record.getMessage()} {extra}")
            if record.exc_info:
                lines.append("".join(traceback.format_exception(*record.exc_info)))
        return lines

    return read


def print_doctor():
    out = io.StringIO()
    try:
        call_command("temporalex", "doctor", stdout=out, stderr=out)
    except CommandError as exc:
        out.write(str(exc))
    return out.getvalue()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workflow", [Planted, Blocking])
def test_the_input_of_a_run_is_in_no_log(texts, way, workflow):
    workflow.start({"way": way, "word": WORD}, id=f"{way}-1")

    drain()

    assert not [line for line in texts() if WORD in line]
    assert WORD not in print_doctor()


def test_messages_reasons_and_comments_are_in_no_log(texts):
    ann = stored("ann", MAY)
    open_run = Planted.start({"way": "open", "word": WORD}, id="open-1")
    asking = Planted.start({"way": "title", "word": WORD}, id="asking-1")
    drain()

    open_run.signal("go", {"text": WORD})
    open_run.signal("unknown", {"text": WORD})
    drain()
    for name in ("reject", "break", "fault", "define", "missing"):
        with pytest.raises(errors.TemporalexError):
            open_run.update(name, WORD, timeout=5)
    with pytest.raises(errors.TemporalexError):
        open_run.query("missing", WORD)
    asking.decide("approved", comment=WORD, by=ann)
    open_run.pause(WORD)
    open_run.unpause(WORD)
    open_run.cancel(WORD)
    drain()
    assert asking.status == "completed"
    with pytest.raises(errors.TemporalexError):
        open_run.terminate(WORD)

    assert not [line for line in texts() if WORD in line]
    assert WORD not in print_doctor()


@pytest.fixture
def prometheus():
    exporters.install(["prometheus"])
    yield exporters.installed("prometheus")
    exporters.uninstall("prometheus")


def test_inputs_are_in_no_span_and_in_no_metric(prometheus):
    before, spans = chain.interceptors, Spans()
    chain.install([spans.interceptor])
    try:
        for workflow in (Planted, Blocking):
            for way in WAYS:
                workflow.start({"way": way, "word": WORD}, id=f"{workflow.__name__}-{way}")
        drain()
        asking, run = (WorkflowHandle(f"Planted-{way}") for way in ("title", "open"))
        run.signal("go", {"text": WORD})
        run.signal("unknown", {"text": WORD})
        drain()
        for name in ("reject", "break", "fault", "define", "missing"):
            with pytest.raises(errors.TemporalexError):
                run.update(name, WORD, timeout=5)
        with pytest.raises(errors.TemporalexError):
            run.query("missing", WORD)
        asking.decide("approved", comment=WORD, by=stored("ann", MAY))
        run.cancel(WORD)
        drain()
    finally:
        chain.install(before)

    assert len(spans.all) > len(WAYS)
    assert [span.name for span in spans.all if WORD in span.to_json()] == []
    text = generate_latest(prometheus.registry).decode()
    assert "temporalex_" in text
    assert WORD not in text


def test_the_log_of_a_bad_definition_says_where_it_is(texts):
    Planted.start({"way": "nobody", "word": WORD}, id="nobody-1")
    drain()

    (line,) = [line for line in texts() if "nobody-1 failed" in line]
    assert "WorkflowDefinitionError at authoring/api.py" in line
    assert "test_planted_word.py" in line
