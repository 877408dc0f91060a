"""Where runs live: the setting and the class say it, and wrong values are refused when Django starts."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import Ok, Workflow, checks
from temporalex_django.backends import routing
from temporalex_django.conf import get_settings
from temporalex_django.errors import NotConfigured, WorkflowDefinitionError


class RoutedOrder(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(args)


class RoutedCart(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(args)


class RoutedBooking(Workflow):
    backend = "tables"

    async def run(self, args: Any) -> Any:
        return Ok(args)


@pytest.fixture(autouse=True)
def cart_on_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only here: the checks of other tests look at all classes of the process."""
    monkeypatch.setattr(RoutedCart, "backend", "temporal")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    backend = object()
    monkeypatch.setattr(routing, "_load_cluster", lambda: backend)
    return backend


def test_a_class_or_else_the_setting_says_where_new_runs_live(settings: Any, cluster: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {"ADDRESS": "host:7233"}}
    classes = (RoutedOrder, RoutedCart, RoutedBooking)
    assert [routing.backend_of_class(cls) is cluster for cls in classes] == [False, True, False]
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": "temporal"}
    assert [routing.backend_of_class(cls) is cluster for cls in classes] == [True, True, False]


def test_a_class_on_a_cluster_that_the_settings_do_not_name_is_refused(settings: Any, cluster: Any) -> None:
    """No worker would poll it."""
    with pytest.raises(
        NotConfigured, match=r"RoutedCart has backend = 'temporal', and TEMPORALEX\['CLUSTER'\] is empty"
    ):
        routing.backend_of_class(RoutedCart)
    problems = [problem for problem in checks.check_cluster_setting(None) if "RoutedCart" in problem.msg]
    assert [problem.id for problem in problems] == ["temporalex_django.E013"]
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {"ADDRESS": "host:7233"}}
    assert checks.check_cluster_setting(None) == []


def test_a_class_with_an_unknown_backend_is_refused() -> None:
    with pytest.raises(WorkflowDefinitionError, match='backend must be "tables" or "temporal", not \'cloud\''):

        class Misrouted(Workflow):
            backend = "cloud"  # type: ignore[assignment]

            async def run(self, args: Any) -> Any:
                return Ok(args)


@pytest.mark.parametrize(
    "cluster",
    [
        {"HOST": "localhost:7233"},
        {"ADDRESS": 7233},
        {"PREFIX": "shop/"},
        {"PREFIX": "shop\n"},
        {"TLS": {"CERTIFICATE": "client.pem"}},
        {"TLS": {"CA": 1}},
        {"TLS": "yes"},
    ],
)
def test_a_wrong_description_of_the_cluster_is_refused(settings: Any, cluster: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": cluster}
    with pytest.raises(NotConfigured, match=r"TEMPORALEX\['CLUSTER'\] must be a dict with the texts ADDRESS"):
        get_settings()


def test_a_right_description_of_the_cluster_is_accepted(settings: Any) -> None:
    cluster = {"ADDRESS": "host:7233", "NAMESPACE": "shop", "PREFIX": "shop:", "TLS": {"CA": "ca.pem"}, "API_KEY": "k"}
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": cluster}
    assert cluster == get_settings().CLUSTER


def test_an_unknown_backend_is_refused(settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": "cloud"}
    with pytest.raises(NotConfigured, match="BACKEND"):
        get_settings()


def test_a_check_asks_for_the_sdk_where_runs_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    (problem,) = checks.check_cluster_sdk(None)
    assert problem.id == "temporalex_django.E011"
    assert "temporalio is not installed" in problem.msg
    assert "temporalex-django[temporal]" in problem.hint
    monkeypatch.undo()
    assert checks.check_cluster_sdk(None) == []
