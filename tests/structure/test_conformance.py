"""Every behaviour of the core has a test that names it, and the page that says which is the one of today."""

from __future__ import annotations

import os

import pytest

from scripts import conformance

pytestmark = pytest.mark.xdist_group("conformance")  # they share what was collected


@pytest.fixture(scope="session")
def named() -> conformance.Named:
    return conformance.collected()


def test_each_behaviour_of_the_core_is_named_by_a_test(named: conformance.Named) -> None:
    assert conformance.missing(named, ["TX", "ST"]) == []


def test_no_test_names_a_behaviour_that_does_not_exist(named: conformance.Named) -> None:
    assert conformance.unknown(named) == {}


def test_the_page_is_up_to_date(named: conformance.Named) -> None:
    assert conformance.PAGE.read_text(encoding="utf-8") == conformance.page(named), "run: make conformance"


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process has all tests")
def test_tests_that_share_something_are_in_one_process(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@conformance"), "pytest-xdist cannot read the groups of this version of pytest"


def test_what_is_missing_or_unknown_is_found() -> None:
    assert conformance.missing({}, ["ST"])[0] == "ST-001"
    assert conformance.unknown({"TX-001": {"a": {""}}, "TX-999": {"b": {"memory"}}}) == {"TX-999": ["b"]}
