"""Texts for people are made fit, whatever data is in them; identifiers are refused, and the character is named."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import Approval, Ok, activity, api, errors, signal, update
from temporalex_django.core.names import MAX_LENGTH, MAX_NOTE_LENGTH, fit_note, fit_text
from tests.support.hosts import in_memory
from tests.support.people import person
from tests.support.runs import once

MAY = "auth.change_group"
ZWNJ, ZWJ, SOFT_HYPHEN = "\u200c", "\u200d", "\u00ad"
FITS = [
    ("Caf\u00e9\u00a0Paris", "Caf\u00e9 Paris"),
    (f"\u0645\u06cc{ZWNJ}\u062e\u0648\u0627\u0647\u0645", f"\u0645\u06cc{ZWNJ}\u062e\u0648\u0627\u0647\u0645"),
    (f"\U0001f469{ZWJ}\U0001f4bb", f"\U0001f469{ZWJ}\U0001f4bb"),
    (f"Donau{SOFT_HYPHEN}dampf", f"Donau{SOFT_HYPHEN}dampf"),
    ("one\ttab", "one tab"),
    ("two\r\nlines", "two lines"),
    ("thin\u2009and\u3000wide\u2028line", "thin and wide line"),
    ("bell\x07 and\x00 nul\x9f", "bell and nul"),
    ("half \ud83d of a pair", "half  of a pair"),
]


@pytest.mark.parametrize(("text", "fitted"), FITS)
def test_a_text_is_made_fit_and_a_fit_text_stays(text: str, fitted: str) -> None:
    assert fit_text(text) == fitted
    assert fit_text(fitted) == fitted


@pytest.mark.parametrize("text", ["Approve it", "  two  blanks ", "\u00e4\U0001f600", "x" * 200])
def test_a_printable_text_stays_letter_for_letter(text: str) -> None:
    assert fit_text(text) == text


def test_a_long_text_is_shortened_where_it_always_was() -> None:
    assert fit_text("x" * 201) == "x" * 199 + "…"
    assert fit_text("x" * 199 + "\x00\x00") == "x" * 199 + "…"
    assert len(fit_text("a\nb" * MAX_LENGTH)) == MAX_LENGTH
    assert fit_note("x" * (MAX_NOTE_LENGTH + 1), label="the reason") == "x" * (MAX_NOTE_LENGTH - 1) + "…"


@pytest.mark.parametrize(("text", "fitted"), FITS)
@in_memory
def test_a_title_and_a_comment_made_of_data_do_not_end_the_run(env: Any, text: str, fitted: str) -> None:
    ann = person(env, "ann", MAY)

    async def body() -> str:
        return (await api.approval(f"Approve {text}", role=MAY)).comment

    run = env.start(once(body, name="test.FitTitle"), id="fit")
    assert [task.title for task in env.inbox(ann)] == [f"Approve {fitted}"]
    run.decide("approved", comment=text, by=ann)
    assert run.result() == fitted


def test_a_fit_title_and_reason_reach_every_host(env: Any) -> None:
    ann = person(env, "ann", MAY)
    question = once(lambda: api.approval("Approve\u00a0the order\nof Caf\u00e9\tParis", role=MAY), name="test.FitHost")
    run = env.start(question, id="fit-host")
    assert [task.title for task in env.inbox(ann)] == ["Approve the order of Caf\u00e9 Paris"]
    run.terminate("no\x00 longer\nwanted")
    with pytest.raises(errors.WorkflowTerminated) as raised:
        run.result()
    assert raised.value.reason == "no longer wanted"


@in_memory
def test_labels_made_of_data_do_not_end_the_run(env: Any) -> None:
    go = signal(lambda payload, state: (Ok(None), state), label="a\tb")

    async def body() -> None:
        await api.sleep(1, then="pay\u00a0it\n")
        await api.sleep_until(api.now(), then="again\t")
        await api.phase(0, signal={"go": go}, label="\x00wait", timeout=1)

    run = env.start(once(body, name="test.FitLabels"), id="labels")
    env.advance(5)
    assert run.status == "completed"
    assert go.label == "a b"
    assert update(lambda args, state: None, label="c\nd").label == "c d"
    assert activity(label="e\u00a0f")(_nothing).label == "e f"
    assert Approval(role=MAY, title="g\th").human_task_spec().title == "g h"


def _nothing() -> None: ...


@in_memory
@pytest.mark.parametrize(
    "options",
    [
        {"users": ["caf\u00e9\u00a0x"]},
        {"groups": ["caf\u00e9\u00a0x"]},
        {"role": "caf\u00e9\u00a0x"},
        {"outcomes": ["caf\u00e9\u00a0x"]},
    ],
)
def test_an_identifier_is_refused_and_its_character_is_named(env: Any, options: dict[str, Any]) -> None:
    run = env.start(once(lambda: api.approval("Approve it", **{"role": MAY, **options}), name="test.UnfitName"))
    with pytest.raises(errors.WorkflowFailed, match=r"U\+00A0 NO-BREAK SPACE at position 5"):
        run.result()


@in_memory
def test_the_character_of_an_id_is_named(env: Any) -> None:
    with pytest.raises(errors.InvalidId, match=r"U\+200D ZERO WIDTH JOINER at position 2"):
        env.start(once(lambda: api.sleep(0), name="test.UnfitId"), id="a\u200db")
    run = env.start(once(lambda: api.sleep(9), name="test.UnfitMessage"))
    with pytest.raises(errors.PayloadError, match=r"U\+0009 CONTROL CHARACTER at position 3"):
        run.signal("go\t")
    with pytest.raises(errors.InvalidId, match=r"U\+00AD SOFT HYPHEN at position 1"):
        run.signal("go", id="\u00ad")


@pytest.mark.parametrize("title", ["", "\x00", 5, None])
@in_memory
def test_a_title_of_nothing_is_refused(env: Any, title: Any) -> None:
    run = env.start(once(lambda: api.approval(title, role=MAY), name="test.NoTitle"))
    with pytest.raises(errors.WorkflowFailed, match="the title: .* is not a text of at least one"):
        run.result()
