"""From where somebody acted: what a client claims is believed only of proxies that are named."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings
from rest_framework.test import APIClient

from temporalex_django import conf
from temporalex_django.models import OperatorAction
from temporalex_django.operations.audit import client_address
from tests.support.client_flows import Basket
from tests.support.people import stored

PROXY = ["10.0.0.0/8", "2001:db8::1"]


@pytest.mark.parametrize(
    ("trusted", "remote", "claimed", "address"),
    [
        ([], "203.0.113.7", "198.51.100.1", "203.0.113.7"),  # a claim of nobody who is known
        ([], "", "198.51.100.1", None),
        ([], "unix:", None, None),
        ([], "fe80::1%eth0", None, "fe80::1"),
        ([], "::ffff:203.0.113.7", None, "203.0.113.7"),
        (PROXY, "203.0.113.7", "198.51.100.1", "203.0.113.7"),
        (PROXY, "10.1.2.3", "198.51.100.1", "198.51.100.1"),
        (PROXY, "10.1.2.3", "1.1.1.1, 198.51.100.1, 10.9.9.9", "198.51.100.1"),  # the first is what the client wrote
        (PROXY, "2001:db8::1", "[2001:db8::7]:4711", "2001:db8::7"),
        (PROXY, "10.1.2.3", "198.51.100.1:4711", "198.51.100.1"),
        (PROXY, "10.1.2.3", None, "10.1.2.3"),
        (PROXY, "10.1.2.3", "unknown", "10.1.2.3"),
        (PROXY, "10.1.2.3", "'; drop table, 10.9.9.9", "10.9.9.9"),
        (PROXY, "", "198.51.100.1", None),
        (["unix"], "", "198.51.100.1", "198.51.100.1"),
        (["unix"], "203.0.113.7", "198.51.100.1", "203.0.113.7"),
    ],
)
def test_the_address_of_a_client(trusted: Any, remote: str, claimed: str | None, address: str | None) -> None:
    meta = {"REMOTE_ADDR": remote} | ({} if claimed is None else {"HTTP_X_FORWARDED_FOR": claimed})
    with override_settings(TEMPORALEX={"TRUSTED_PROXIES": trusted}):
        assert client_address(meta) == address


@pytest.mark.parametrize("wrong", ["10.0.0.0/8", ["10.0.0.0/99"], ["localhost"], [10], [""], 7, None])
def test_what_is_no_proxy_is_refused(wrong: Any) -> None:
    with override_settings(TEMPORALEX={"TRUSTED_PROXIES": wrong}):
        (problem,) = conf.problems()

    assert "TRUSTED_PROXIES" in problem
    assert "a list of addresses, networks" in problem


@pytest.mark.django_db
def test_the_audit_notes_it() -> None:
    client = APIClient()
    client.force_authenticate(stored("ann", "temporalex_django.signal_instance"))
    Basket.start(id="b-1")
    with override_settings(TEMPORALEX={"TRUSTED_PROXIES": ["127.0.0.1"]}):
        sent = client.post(
            "/api/instances/b-1/signals/note/", {}, format="json", headers={"X-Forwarded-For": "192.0.2.1"}
        )

    assert sent.status_code == 202
    assert OperatorAction.objects.get().address == "192.0.2.1"
