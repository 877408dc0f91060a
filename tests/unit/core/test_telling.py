"""What a log says about an error: one line, not too long, no payload."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Literal

import pytest
from django.db import utils as django_errors

from temporalex_django import Async, Stop, Workflow, api, errors
from temporalex_django.core.failures import MAX_LENGTH, error_line, first_line
from temporalex_django.core.payloads.codec import convert
from temporalex_django.testing import WorkflowEnvironment

SECRET = "4111 1111\n1111 1111"


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as exc:
        return exc


class OperationalError(Exception):
    """As drivers call it."""


def test_an_error_of_user_code_is_its_type_and_place() -> None:
    text = error_line(raised(ValueError(SECRET)))

    assert text.startswith("ValueError at core/test_telling.py:")
    assert text.endswith(" in raised")
    assert error_line(ValueError(SECRET)) == "ValueError"
    assert error_line(errors.PayloadError(SECRET)) == "PayloadError"
    assert error_line(errors.UpdateRejected(SECRET)) == "UpdateRejected"


def test_of_a_payload_that_does_not_fit_the_field_is_named() -> None:
    with pytest.raises(errors.PayloadError, match="4111") as caught:
        convert({"kind": SECRET}, dict[str, Literal["card"]], label="a payment")

    assert error_line(caught.value).startswith("PayloadError for `$[...]` at ")


def test_what_quotes_nothing_is_said() -> None:
    assert error_line(errors.NotAwaited("sleep was not awaited")) == "NotAwaited: sleep was not awaited"
    assert error_line(OperationalError("\n  connection refused\nDETAIL: x")) == "OperationalError: connection refused"


@pytest.mark.parametrize(
    "error",
    [
        OperationalError(SECRET),
        django_errors.OperationalError(SECRET),
        django_errors.InterfaceError(SECRET),
        errors.NotConfigured(SECRET),
        errors.NestingError(SECRET),
        errors.NotAwaited(SECRET),
        errors.OutsideWorkflow(SECRET),
        errors.DeterminismViolation(SECRET),
    ],
)
def test_an_error_that_other_code_raises_may_quote_data_whatever_its_class(error: BaseException) -> None:
    text = error_line(raised(error))

    assert text.startswith(f"{type(error).__name__} at core/test_telling.py:")
    assert "4111" not in text


def test_lines_are_cut_and_printable() -> None:
    assert first_line("a\x00b\x1b[31m") == "a?b?[31m"
    assert first_line(" \n") == ""
    assert len(error_line(OperationalError("x" * 10_000))) == MAX_LENGTH
    assert len(first_line("x" * 10_000)) == MAX_LENGTH


def deep(n: int) -> None:
    if n == 0:
        raise KeyError(SECRET)
    deep(n - 1)


def test_the_places_nearest_to_the_error_are_named() -> None:
    with pytest.raises(KeyError) as caught:
        deep(50)

    assert error_line(caught.value).count(" in deep") == 3
    assert "\n" not in error_line(caught.value)


def undoes(card: str) -> None:
    raise OSError(f"cannot undo {card}")


class Careless(Workflow):
    """Errors that have no caller: of a compensation, of a branch that lost its race, of handlers."""

    name = "telling.Careless"

    async def run(self, args: str) -> Any:
        async def loses() -> None:
            try:
                await api.sleep(60)
            except errors.Cancelled:
                raise ValueError(args) from None

        async def note(payload: str) -> None:
            raise RuntimeError(f"no such note: {payload}")

        try:
            async with api.saga() as saga:
                saga.add(undoes, args)
                raise LookupError(args)
        except LookupError:
            pass
        await api.race(loses, api.wait_for_signal("go"))
        await api.phase(
            0,
            signal={
                "note": lambda payload, state: Async(partial(note, payload), state),
                "end": lambda payload, state: Stop(state),
            },
        )
        raise KeyError(args)


def test_no_payload_of_a_run_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="temporalex_django")
    env = WorkflowEnvironment()
    handle = env.start(Careless, SECRET)
    handle.signal("go", SECRET)
    handle.signal("note", SECRET)
    handle.signal("end")

    with pytest.raises(errors.WorkflowFailed, match="4111"):  # there it stands
        handle.result()
    told_of = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    # the last line is that the run failed
    for text, kind in zip(told_of, ("OSError", "ValueError", "RuntimeError", "KeyError"), strict=True):
        assert f"failed: {kind} at core/test_telling.py:" in text
    shows_nothing(caplog)


def shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of the payload stands in any line of the log, and each is one line."""
    for record in caplog.records:
        shown = logging.Formatter("%(message)s").format(record)
        assert "4111" not in shown
        assert "\n" not in shown
        assert len(shown) < 2 * MAX_LENGTH
