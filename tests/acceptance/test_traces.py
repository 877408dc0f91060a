"""Traces: one over a request, its run, its activities and its children, and one for each cause of a long run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import baggage, context, trace

from temporalex_django import Ok, Reply, RetryPolicy, Stop, Workflow, activity, activity_context, api, errors
from temporalex_django.contrib.otel import Tracing
from temporalex_django.interceptors.chain import chain
from tests.support.people import Somebody
from tests.support.spans import Spans

pytestmark = pytest.mark.hosts("memory", "memory-evicted", "database", "database-evicted")

SECRET = "payload-4711"


@pytest.fixture
def spans() -> Iterator[Spans]:
    before, spans = chain.interceptors, Spans()
    chain.install([spans.interceptor])
    yield spans
    chain.install(before)


@activity(name="traces.fetch", retry=RetryPolicy(max_attempts=2, initial_interval=1))
def fetch(fails: bool) -> str:
    if fails and activity_context().attempt == 1:
        raise LookupError(SECRET)
    return SECRET


@activity(name="traces.book", atomic=True)
def book() -> str:
    return SECRET


class TracedChild(Workflow):
    name = "traces.Child"

    async def run(self, args: Any) -> Ok:
        return Ok(await fetch(False))


class Traced(Workflow):
    name = "traces.Parent"

    async def run(self, args: Any) -> Ok:
        await fetch(bool(args))
        await book()
        return Ok(await api.child(TracedChild, SECRET))


def test_one_trace_holds_the_request_the_run_its_activities_and_its_child(env: Any, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("POST /orders"):
        h = env.start(Traced, id="t1")
    assert h.result() == SECRET
    assert len({span.context.trace_id for span in spans.all}) == 1
    tree = [(span.name, spans.parent(span)) for span in sorted(spans.all, key=lambda span: span.start_time or 0)]
    assert tree == [
        ("POST /orders", None),
        ("start traces.Parent", "POST /orders"),
        ("activation traces.Parent", "start traces.Parent"),
        ("activity traces.fetch", "activation traces.Parent"),
        ("activation traces.Parent", "activation traces.Parent"),
        ("atomic_activity traces.book", "activation traces.Parent"),
        ("activation traces.Parent", "activation traces.Parent"),
        ("start_child traces.Child", "activation traces.Parent"),
        ("activation traces.Child", "start_child traces.Child"),
        ("activity traces.fetch", "activation traces.Child"),
        ("activation traces.Child", "activation traces.Child"),
        ("activation traces.Parent", "start_child traces.Child"),
    ]


def test_spans_have_names_and_ids_and_never_a_payload(env: Any, spans: Spans) -> None:
    h = env.start(Traced, True, id="t2")
    env.advance(timedelta(minutes=1))
    assert h.result() == SECRET
    failed, *_ = spans.named("activity traces.fetch")
    assert failed.attributes is not None
    assert failed.attributes["temporalex.activity.attempt"] == 1
    assert failed.attributes["error.type"] == "LookupError"
    assert (failed.status.status_code, failed.status.description) == (trace.StatusCode.ERROR, "LookupError")
    assert SECRET not in "".join(span.to_json() for span in spans.all)
    started = spans.one("start traces.Parent").attributes
    assert started is not None
    assert started["temporalex.workflow_id"] == "t2"
    assert started["messaging.system"] == "temporalex"
    assert started["messaging.operation.type"] == "send"


class TracedCart(Workflow):
    name = "traces.Cart"

    async def run(self, args: Any) -> Ok:
        state = await api.phase(
            0, signal={"close": lambda _, state: Stop(state)}, update={"add": lambda n, state: Reply(state, state + n)}
        )
        await api.sleep(60)
        await api.approval("Ship?", users=["ann"])
        return Ok(state)


def test_a_run_that_lives_long_has_a_trace_for_each_cause(env: Any, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("first"):
        h = env.start(TracedCart, id="t3")
    with spans.tracer.start_as_current_span("second"):
        h.update("add", 1)
    with spans.tracer.start_as_current_span("third"):
        h.signal("close")
    env.advance(timedelta(minutes=2))
    with spans.tracer.start_as_current_span("fourth"):
        h.decide("approved", by=Somebody("ann"))
    assert h.result() == 1
    by_name = {name: spans.one(name).context.trace_id for name in ("first", "second", "third", "fourth")}
    activations = spans.named("activation traces.Cart")
    traces = [span.context.trace_id for span in activations]
    timer = traces[3]
    assert traces == [by_name["first"], by_name["second"], by_name["third"], timer, by_name["fourth"]]
    assert timer not in by_name.values()
    assert activations[3].parent is None
    start = spans.one("start traces.Cart").context
    assert [link.context.span_id for link in activations[3].links] == [start.span_id]
    assert [link.context.span_id for link in activations[1].links] == [start.span_id]
    assert spans.parent(spans.one("decide traces.Cart")) == "fourth"
    assert spans.parent(spans.one("update traces.Cart")) == "second"


def test_messages_of_one_activation_are_linked(env: Any, spans: Spans) -> None:
    h = env.start(TracedCart, id="t4")
    with env.batch():
        for name in ("one", "two"):
            with spans.tracer.start_as_current_span(name):
                h.signal("nothing")
    last = spans.named("activation traces.Cart")[-1]
    first, second = spans.named("signal traces.Cart")
    start = spans.one("start traces.Cart")
    assert last.parent is not None
    assert last.parent.span_id == first.context.span_id
    assert {link.context.span_id for link in last.links} == {second.context.span_id, start.context.span_id}


def test_a_replay_makes_no_spans(env: Any, spans: Spans) -> None:
    h = env.start(TracedCart, id="t5")
    h.update("add", 1)
    before = len(spans.all)
    env.replay(h)
    assert len(spans.all) == before


def test_a_traceparent_of_the_caller_is_the_parent_without_a_span(env: Any, spans: Spans) -> None:
    h = env.start(
        TracedCart, id="t6", headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    )
    span = spans.one("start traces.Cart")
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert (
        h.describe()
        .headers["traceparent"]
        .startswith(f"00-0af7651916cd43dd8448eb211c80319c-{span.context.span_id:016x}")
    )


def test_full_headers_are_left_as_they_are(env: Any, spans: Spans) -> None:
    headers = {"a": "x" * 4050}
    h = env.start(TracedCart, id="t7", headers=headers)
    assert h.describe().headers == headers
    h.signal("close", headers=headers)
    assert h.status != "blocked"


@activity(name="traces.read_baggage")
def read_baggage() -> dict[str, Any]:
    return dict(baggage.get_all())


class TracedBaggage(Workflow):
    name = "traces.Baggage"

    async def run(self, args: Any) -> Ok:
        return Ok([api.headers().get("baggage"), await read_baggage()])


class WithTenant(Tracing):
    baggage_keys = ("tenant",)


@pytest.mark.parametrize(
    ("tracing", "seen"), [(Tracing, [None, {}]), (WithTenant, ["tenant=acme", {"tenant": "acme"}])]
)
def test_baggage_travels_only_if_its_key_is_allowed(env: Any, tracing: type[Tracing], seen: Any) -> None:
    spans, before = Spans(tracing), chain.interceptors
    chain.install([spans.interceptor])
    token = context.attach(baggage.set_baggage("tenant", "acme", baggage.set_baggage("secret", SECRET)))
    try:
        h = env.start(TracedBaggage, id="t8")
    finally:
        context.detach(token)
        chain.install(before)
    if tracing is WithTenant:
        assert h.describe().headers["baggage"] == "tenant=acme"
    assert SECRET not in str(h.describe().headers)


def test_names_of_spans_come_from_code_alone(env: Any, spans: Spans) -> None:
    h = env.start(TracedCart, id="t9")
    for number in range(5):
        h.signal(f"attack-{number}", id=f"m{number}")
        with pytest.raises(errors.UpdateRejected):
            h.update(f"attack-{number}")
    assert {span.name for span in spans.all} == {
        "start traces.Cart",
        "signal traces.Cart",
        "update traces.Cart",
        "activation traces.Cart",
    }


def test_a_trace_that_is_not_sampled_makes_no_spans_below_it(
    env: Any, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer, span_names = spans.interceptor._tracer, []
    start_span = tracer.start_span

    def note(name: str, *args: Any, **options: Any) -> Any:
        span_names.append(name)
        return start_span(name, *args, **options)

    monkeypatch.setattr(tracer, "start_span", note)
    not_sampled = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
    h = env.start(Traced, id="t10", headers=not_sampled)
    h.result()
    assert spans.all == ()
    assert span_names == ["start traces.Parent", "start_child traces.Child"]  # calls ask the sampler, work does not
    context = trace.get_current_span().get_span_context()
    assert not context.is_valid  # and nothing of it is left behind


def test_a_cause_that_is_sampled_is_the_parent_beside_one_that_is_not(env: Any, spans: Spans) -> None:
    not_sampled = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
    h = env.start(TracedCart, id="t11", headers=not_sampled)
    with env.batch():
        h.signal("nothing", headers=not_sampled)
        with spans.tracer.start_as_current_span("second"):
            h.signal("nothing")
    assert spans.parent(spans.one("activation traces.Cart")) == "signal traces.Cart"
    assert spans.one("signal traces.Cart").context.trace_id == spans.one("second").context.trace_id
