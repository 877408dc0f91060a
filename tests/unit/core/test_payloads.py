"""Payloads, copies and annotations: what values become at borders, and what is refused there."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import subprocess
import sys

import pytest

from temporalex_django import errors
from temporalex_django.core import names
from temporalex_django.core.history.replay import _frames_of, is_user_code
from temporalex_django.core.payloads import codec as payloads
from temporalex_django.core.payloads.codec import deep_copy


class TestCodec:
    """What history rows are written with: total on plain data."""

    def test_round_trip(self):
        codec = payloads.JsonCodec()
        value = {"b": [1, 2.5, None, True], "a": "größer"}
        assert codec.decode(codec.encode(value)) == value
        assert codec.encode({"b": 1, "a": 2}) == b'{"b":1,"a":2}', "keys keep their order"

    def test_keys_that_are_no_strings_and_numbers_of_any_size(self):
        codec = payloads.JsonCodec()
        assert codec.decode(codec.encode({1: {2.5: 2}})) == {"1": {"2.5": 2}}
        with pytest.raises(errors.PayloadError, match="cannot be encoded at `\\$.a`"):
            codec.encode({"a": object()})

    @pytest.mark.parametrize("data", [b"{", b"", b"\xff", b'"\xff"'])
    def test_what_is_no_json_is_said_to_be_none(self, data):
        with pytest.raises(errors.PayloadError, match="a stored payload is not JSON"):
            payloads.JsonCodec().decode(data)


@dataclasses.dataclass
class Point:
    x: float
    y: object = None


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": object()}]}, r"\$.a\[1\].b"),
        ([1, (2, math.nan)], r"\$\[1\]\[1\]"),
        (Point(1.0, {"deep": math.inf}), r"\$.y.deep"),
        ({(1, 2): "tuple as a key"}, None),
        ({"a": {(1, 2): "deeper"}}, r"\$.a"),
    ],
)
def test_what_cannot_be_encoded_is_shown_by_its_path(value, path):
    with pytest.raises(errors.PayloadError, match=f"cannot be encoded at `{path}`" if path else "cannot be encoded: "):
        payloads.to_plain(value)


def test_depth_and_size_have_limits():
    nested = []
    for _ in range(payloads.MAX_DEPTH + 1):
        nested = [nested]
    with pytest.raises(errors.PayloadError, match="nested more than 200 levels deep"):
        payloads.to_plain(nested)
    assert payloads.to_plain([[]] * 500) == [[]] * 500, "many side by side are not deep"
    assert payloads.to_plain("x" * 10, limit=12) == "x" * 10
    with pytest.raises(errors.PayloadError, match="12 bytes, more than the 10 allowed"):
        payloads.to_plain("x" * 10, limit=10)


def test_what_does_not_fit_its_annotation_is_refused_with_both():
    with pytest.raises(errors.PayloadError, match="does not fit Point: .*x"):
        payloads.convert({"x": "text"}, Point)
    with pytest.raises(errors.PayloadError, match="cannot be decoded to"):
        payloads.convert({"x": 1}, lambda: 1)
    assert payloads.convert({"x": 1}, Point) == Point(1.0)
    assert payloads.convert("2026-01-01", dt.date | None) == dt.date(2026, 1, 1)


def test_each_annotation_is_resolved_by_itself():
    """What cannot be resolved stays plain JSON."""

    class Local:
        pass

    def partly(a: Local, b: Unknown, c: int): ...  # noqa: F821 - on purpose

    def closes(a: Local, b: Unknown, c: Later):  # noqa: F821 - on purpose
        return Local, Later

    if not partly:
        Later = 1
    assert payloads.resolve_hints(partly) == {"c": int}
    assert payloads.resolve_hints(closes) == {"a": Local}

    class Called:
        def __call__(self, a: Unknown, b: int): ...  # noqa: F821 - on purpose

    assert payloads.resolve_hints(Called()) == {"b": int}
    assert payloads.resolve_hints(Called().__call__) == {"b": int}
    assert payloads.resolve_hints(max) == {}


class Kept:
    def __init__(self, value):
        self.value = value


def test_copies_share_nothing_whatever_they_are_made_of():
    inner = Kept([1])
    value = {"a": [inner, (1, [2])], "b": inner}
    made = deep_copy(value)
    made["a"][0].value.append(2)
    made["a"][1][1].append(3)
    assert inner.value == [1] and value["a"][1] == (1, [2])
    assert deep_copy(inner).value == [1] and deep_copy(inner) is not inner
    deep = last = []
    for _ in range(100):
        last.append([])
        last = last[0]
    again = deep_copy(deep)
    assert again == deep
    circle: list = []
    circle.append(circle)
    assert deep_copy(circle)[0][0] is not circle


def test_names_that_are_wrong_are_shown_cut_short():
    assert names.quoted("n" * 1_000_000).startswith("'nnn") and len(names.quoted("n" * 1_000_000)) <= 60
    assert names.quoted(["x" * 100]).endswith("…")
    assert names.check_name("add item", label="signal") == "add item"
    with pytest.raises(
        errors.PayloadError, match="signal '__resume__': names that begin with two underscores are reserved"
    ):
        names.check_name("__resume__", label="signal")


def test_lines_are_the_users_unless_they_are_ours_or_the_interpreters():
    def here():
        yield

    frames = [*_frames_of(here()), *_frames_of(None)]
    assert [code.co_name for code, _ in frames] == ["here"]
    done = here()
    list(done)
    assert list(_frames_of(done)) == []
    assert is_user_code(here.__code__)
    assert not is_user_code(compile("1", "<string>", "exec"))
    assert not is_user_code(payloads.to_plain.__code__) and not is_user_code(dataclasses.replace.__code__)


FIRST_USES = """
import sys, threading
from dataclasses import make_dataclass
from typing import TypedDict
from temporalex_django.core.payloads import codec
sys.setswitchinterval(1e-6)
for turn in range(40):
    inner = [make_dataclass(f"Inner{turn}_{k}", [(f"f{i}", int) for i in range(8)]) for k in range(20)]
    fields, value = {f"f{k}": cls for k, cls in enumerate(inner)}, {f"f{k}": {f"f{i}": i for i in range(8)} for k in range(20)}
    for outer in (TypedDict(f"Outer{turn}", fields), make_dataclass(f"Outer{turn}", list(fields.items()))):
        start, results = threading.Barrier(6), []
        def use():
            start.wait()
            results.append(codec.convert(value, outer))
        threads = [threading.Thread(target=use) for _ in range(6)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        assert len(results) == 6 and all(result == results[0] for result in results)
"""


def test_threads_that_use_a_class_for_the_first_time_do_not_crash():
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
