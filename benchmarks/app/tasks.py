"""The django-q2 task that is the peer of a workflow with one activity."""

from __future__ import annotations


def nothing() -> int:
    return 1
