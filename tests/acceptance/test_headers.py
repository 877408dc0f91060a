"""Headers travel with starts and messages, and with everything that a run starts; ``api.headers()`` reads them."""

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
    activity,
    activity_context,
    api,
    errors,
    query,
    update,
)

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tenant": "näh"}


def refuse_unsaid(args: Any, state: Any) -> None:
    if args == "judged":
        raise errors.UpdateRejected(f"judged with {api.headers()}")


def say(args: Any, state: Any) -> Reply:
    return Reply(api.headers(), state)


async def spread(args: Any, state: Any) -> Reply:
    async def branch() -> Any:
        return api.headers()

    return Reply(await api.parallel([branch]), state)


class HeaderDesk(Workflow):
    name = "headers.Desk"

    async def run(self, args: Any) -> Ok:
        seen = [api.headers()]
        await api.wait_for_signal("open")
        seen.append(api.headers())
        seen = await api.phase(
            seen,
            update={"say": update(say, validator=refuse_unsaid), "spread": spread},
            signal={
                "note": lambda _, state: NoReply([*state, api.headers()]),
                "close": lambda _, state: Stop(state),
            },
        )
        return Ok([*seen, api.headers()])


@activity(name="headers.told")
def told() -> dict[str, str]:
    return dict(activity_context().headers)


@activity(name="headers.told_at_once", atomic=True)
def told_at_once() -> dict[str, str]:
    return dict(activity_context().headers)


class HeaderChild(Workflow):
    name = "headers.Child"

    async def run(self, args: Any) -> Ok:
        return Ok([api.headers(), await told()])


class HeaderReader(Workflow):
    """Tells the headers of the first signal that it handles."""

    name = "headers.Reader"

    async def run(self, args: Any) -> Ok:
        return Ok(await api.phase(None, signal={"told": lambda _, __: Stop(api.headers())}))


class HeaderParent(Workflow):
    name = "headers.Parent"

    async def run(self, args: Any) -> Ok | ContinueAsNew:
        if args == "again":
            return ContinueAsNew("last")
        if args == "last":
            return Ok(api.headers())
        await api.signal_external("headers-reader", "told")
        return Ok([await told(), await told_at_once(), await api.child(HeaderChild)])


def test_code_reads_the_headers_of_the_message_and_otherwise_of_the_run(env: Any) -> None:
    h = env.start(HeaderDesk, id="headers-desk", headers=TRACE)
    h.signal("open", headers={"of": "open"})
    assert h.update("say", headers={"of": "say"}) == {"of": "say"}
    assert h.update("say") == {}
    assert h.update("spread", headers={"of": "spread"}) == [{"of": "spread"}]
    with pytest.raises(errors.UpdateRejected, match="judged with {'of': 'judge'}"):
        h.update("say", "judged", headers={"of": "judge"})
    h.signal("note", headers={"of": "note"})
    h.signal("close")

    assert h.result() == [TRACE, TRACE, {"of": "note"}, TRACE]


def test_an_async_handler_keeps_the_headers_of_its_message(env: Any) -> None:
    def later(args: Any, state: Any) -> Async:
        async def note() -> None:
            await api.sleep(60)
            api.publish_state([api.headers()])

        return Async(note, state)

    class HeaderLater(Workflow):
        name = "headers.Later"

        async def run(self, args: Any) -> Ok:
            return Ok(await api.phase(None, signal={"later": later, "close": lambda _, state: Stop(state)}))

        @query("published")
        @staticmethod
        def published(state: Any) -> Any:
            return state

    h = env.start(HeaderLater, id="headers-later", headers=TRACE)
    h.signal("later", headers={"of": "first"})
    env.advance(timedelta(minutes=2))
    assert h.query("published") == [{"of": "first"}]


def test_they_travel_to_all_that_a_run_starts(env: Any) -> None:
    reader = env.start(HeaderReader, id="headers-reader", headers={"own": "reader"})
    h = env.start(HeaderParent, id="headers-parent", headers=TRACE)

    assert h.result() == [TRACE, TRACE, [TRACE, TRACE]]
    assert reader.result() == TRACE


def test_they_travel_to_the_next_run_of_the_chain(env: Any) -> None:
    assert env.start(HeaderParent, "again", id="headers-again", headers=TRACE).result() == TRACE


def test_without_headers_nothing_is_recorded(env: Any) -> None:
    h = env.start(HeaderDesk, id="headers-none")
    h.signal("open")
    h.update("say")
    h.signal("close")
    assert h.result() == [{}, {}, {}]
    assert [event.kind for event in h.history() if "headers" in event.attributes] == []


def test_the_history_has_them(env: Any) -> None:
    h = env.start(HeaderDesk, id="headers-history", headers=TRACE)
    h.signal("open", headers={"of": "open"})
    h.update("say", headers={"of": "say"})
    seen = {event.kind: event.attributes["headers"] for event in h.history() if "headers" in event.attributes}
    assert seen == {"WorkflowStarted": TRACE, "SignalReceived": {"of": "open"}, "UpdateAccepted": {"of": "say"}}


def test_a_reader_changes_nothing_by_what_it_gets(env: Any) -> None:
    class HeaderChanger(Workflow):
        name = "headers.Changer"

        async def run(self, args: Any) -> Ok:
            api.headers()["tenant"] = "other"
            return Ok(api.headers())

    assert env.start(HeaderChanger, id="headers-changer", headers=TRACE).result() == TRACE


def test_signal_with_start_gives_them_to_both(env: Any) -> None:
    h = env.signal_with_start(HeaderReader, "told", id="headers-both", headers=TRACE)
    assert h.result() == TRACE
    assert h.describe().headers == TRACE


BAD = {
    "no text": ({"a": 1}, "the header 'a' must be text, not int"),
    "no text as name": ({1: "a"}, "1 is not the name of a header"),
    "capitals": ({"X-Request": "1"}, "'X-Request' is not the name of a header"),
    "an empty name": ({"": "1"}, "'' is not the name of a header"),
    "a line break": ({"a": "1\n2"}, "the header 'a' has a control character"),
    "half a character": ({"a": "\ud800"}, "the header 'a' has a character that UTF-8 cannot encode"),
    "too large": (
        {"a": "x", "big": "ä" * 2048},
        "the headers have 4101 bytes, more than 4096: the longest one is 'big'",
    ),
    "no mapping": ([("a", "1")], "headers must be a mapping of names to texts, not list"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_headers_start_and_send_nothing(env: Any, bad: str) -> None:
    headers, text = BAD[bad]
    h = env.start(HeaderDesk, id="headers-bad")
    h.signal("open")
    before = len(h.history())
    for attempt in (
        lambda: env.start(HeaderDesk, id="headers-worse", headers=headers),
        lambda: env.signal_with_start(HeaderDesk, "note", id="headers-worse", headers=headers),
        lambda: h.signal("note", headers=headers),
        lambda: h.update("say", headers=headers),
    ):
        with pytest.raises(errors.InvalidHeaders) as caught:
            attempt()
        assert text in str(caught.value)
    assert len(h.history()) == before
    with pytest.raises(errors.WorkflowNotFound):
        env.handle("headers-worse")


def test_exactly_four_kilobytes_are_taken(env: Any) -> None:
    headers = {"a": "x" * 4095}
    h = env.start(HeaderReader, id="headers-full", headers=headers)
    h.signal("told", headers=headers)
    assert h.result() == headers


def test_no_headers_is_none(env: Any) -> None:
    h = env.start(HeaderReader, id="headers-empty", headers={})
    h.signal("told", headers={})
    assert h.result() == {}
    assert h.describe().headers == {}


@pytest.mark.hosts("memory", "memory-evicted", "database", "database-evicted")
def test_a_reset_and_a_fork_keep_them(env: Any) -> None:
    h = env.start(HeaderDesk, id="headers-reset", headers=TRACE)
    h.signal("open", headers={"of": "open"})
    h.signal("note", headers={"of": "note"})
    h.reset(to=1)
    fork = h.fork(to=1, id="headers-fork")
    for run in (h, fork):
        run.signal("close")
        assert run.result() == [TRACE, TRACE, {"of": "note"}, TRACE]


@pytest.mark.hosts("memory", "memory-evicted", "database", "database-evicted")
def test_a_failed_message_keeps_them(env: Any) -> None:
    fails = [True]

    def take(_: Any, state: Any) -> Any:
        if fails[0]:
            raise ValueError("not now")
        return Stop(api.headers())

    class HeaderFailing(Workflow):
        name = "headers.Failing"

        async def run(self, args: Any) -> Ok:
            return Ok(await api.phase(None, signal={"take": take}))

    h = env.start(HeaderFailing, id="headers-failing")
    h.signal("take", headers={"of": "take"})
    (failed,) = h.describe().failed_messages
    fails[0] = False
    h.redeliver(failed.id)
    assert h.result() == {"of": "take"}


def test_a_retry_of_an_activity_has_them(env: Any) -> None:
    seen = []

    @activity(name="headers.second_time")
    def second_time() -> int:
        seen.append(dict(activity_context().headers))
        if len(seen) == 1:
            raise ValueError("once more")
        return len(seen)

    class HeaderRetry(Workflow):
        name = "headers.Retry"

        async def run(self, args: Any) -> Ok:
            return Ok(await second_time())

    h = env.start(HeaderRetry, id="headers-retry", headers=TRACE)
    env.advance(timedelta(minutes=5))
    assert h.result() == 2
    assert seen == [TRACE, TRACE]
