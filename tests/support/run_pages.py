"""The page of a run in the console, with its parts."""

from __future__ import annotations

from typing import Any

from django.test import Client

CONSOLE = "/admin/temporalex_django/instance/console/"
PARTS = ("messages", "data", "people", "family", "audit", "raw")


def address_of(run_id: Any, part: str = "") -> str:
    """Return the address of the page of a run, or of a part of it."""
    return f"{CONSOLE}runs/{run_id}/{part and part + '/'}"


def text_of(client: Client, run_id: Any, *parts: str) -> str:
    """Return the page of a run with the texts of all its parts, or of those."""
    pages = [client.get(address_of(run_id, part)) for part in parts or ("", *PARTS)]
    assert {page.status_code for page in pages} == {200}, pages
    return "".join(page.content.decode() for page in pages)
