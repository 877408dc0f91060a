"""The workflows that integration tests start in real workers."""

from __future__ import annotations

from tests.app import attempts, crowds, durable, graphs, killers, scopes, turns  # noqa: F401 - importing them registers them
