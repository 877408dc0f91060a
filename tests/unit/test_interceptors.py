"""The chain of interceptors by itself: order, errors, and the classes of a setting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from temporalex_django import errors
from temporalex_django.interceptors import Interceptor, QueryCall
from temporalex_django.interceptors.chain import HOOKS, InterceptorChain, around, load_interceptors

SUBJECT = QueryCall(workflow="W", name="q")
HERE = "tests.unit.test_interceptors"


def noting(seen: list[str], name: str) -> Interceptor:
    class Noting(Interceptor):
        @contextmanager
        def query(self, query: QueryCall) -> Iterator[None]:
            seen.append(f"{name} in")
            try:
                yield
            finally:
                seen.append(f"{name} out")

    return Noting()


def chain_of(*interceptors: Interceptor) -> InterceptorChain:
    chain = InterceptorChain()
    chain.install(interceptors)
    return chain


def test_the_first_one_is_the_outermost() -> None:
    seen: list[str] = []
    with around(chain_of(noting(seen, "a"), noting(seen, "b")).query, SUBJECT):
        seen.append("work")
    assert seen == ["a in", "b in", "work", "b out", "a out"]


def test_a_hook_that_nobody_overrides_is_empty() -> None:
    chain = chain_of(noting([], "a"), Interceptor())
    assert {hook: len(getattr(chain, hook)) for hook in HOOKS} == {hook: int(hook == "query") for hook in HOOKS}


def test_an_error_of_the_work_passes_through_unchanged() -> None:
    seen: list[str] = []
    error = KeyError("x")
    with pytest.raises(KeyError) as caught, around(chain_of(noting(seen, "a"), noting(seen, "b")).query, SUBJECT):
        raise error
    assert caught.value is error
    assert seen == ["a in", "b in", "b out", "a out"]


class Failing(Interceptor):
    """Fails in the place that its constructor names."""

    def __init__(self, place: str = "in", error: Exception | None = None) -> None:
        self.place = place
        self.error = error or ValueError("secret")

    @contextmanager
    def query(self, query: QueryCall) -> Iterator[None]:
        if self.place == "in":
            raise self.error
        yield
        raise self.error

    def outgoing(self, outgoing: Any) -> None:
        raise self.error

    def problem(self, problem: Any) -> None:
        raise self.error


@pytest.mark.parametrize("place", ["in", "out"])
def test_an_error_of_an_interceptor_has_its_name_and_not_the_text_of_the_error(place: str) -> None:
    seen: list[str] = []
    chain = chain_of(noting(seen, "a"), Failing(place), noting(seen, "b"))
    with pytest.raises(errors.InterceptorFailed) as caught, around(chain.query, SUBJECT):
        seen.append("work")
    assert f"{HERE}.Failing (query) raised ValueError" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    inner = ["b in", "work", "b out"] if place == "out" else []
    assert seen == ["a in", *inner, "a out"]


def test_an_error_of_this_package_keeps_its_type_if_the_place_keeps_errors() -> None:
    chain = chain_of(Failing(error=errors.ActionNotPermitted("no")))
    with pytest.raises(errors.ActionNotPermitted) as caught, around(chain.query, SUBJECT, keeps_errors=True):
        raise AssertionError
    assert caught.value.__notes__ == [f"raised by the interceptor {HERE}.Failing (query)"]
    with pytest.raises(errors.InterceptorFailed, match="raised ActionNotPermitted: no"), around(chain.query, SUBJECT):
        raise AssertionError


def test_an_interceptor_may_not_suppress_an_error() -> None:
    class Suppressing(Interceptor):
        def query(self, query: QueryCall) -> Any:
            return suppress(Exception)

    with (
        pytest.raises(errors.InterceptorFailed, match="must not suppress KeyError") as caught,
        around(chain_of(Suppressing()).query, SUBJECT),
    ):
        raise KeyError("x")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_report_of_a_problem_never_fails(caplog: pytest.LogCaptureFixture) -> None:
    chain_of(Failing()).report(object())
    assert f"{HERE}.Failing (problem) failed: ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_what_is_sent_fails_with_the_name() -> None:
    with pytest.raises(errors.InterceptorFailed, match=r"Failing \(outgoing\) raised ValueError"):
        chain_of(Failing()).prepare(object())


class NotOne:
    pass


class WithArguments(Interceptor):
    def __init__(self, needed: int) -> None: ...


class BareGenerator(Interceptor):
    def query(self, query: QueryCall) -> Any:
        yield


class Async(Interceptor):
    async def problem(self, problem: Any) -> None: ...


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nowhere.Class", "ModuleNotFoundError"),
        ("Class", "ValueError"),
        (f"{HERE}.Missing", "AttributeError"),
        (f"{HERE}.NotOne", "it is not a subclass of temporalex_django.interceptors.Interceptor"),
        (f"{HERE}.HERE", "it is not a subclass"),
        (f"{HERE}.WithArguments", "TypeError"),
        (
            f"{HERE}.BareGenerator",
            "query is an async function or a generator: decorate it with contextlib.contextmanager",
        ),
        (f"{HERE}.Async", "problem is an async function or a generator: write a plain function"),
    ],
)
def test_a_class_that_cannot_be_used_is_named_with_the_reason(path: str, text: str) -> None:
    with pytest.raises(errors.NotConfigured) as caught:
        load_interceptors((path,))
    assert repr(path) in str(caught.value)
    assert text in str(caught.value)


def test_each_path_gives_one_object_in_a_process() -> None:
    path = f"{HERE}.Failing"
    assert load_interceptors((path,)) is load_interceptors((path,))
