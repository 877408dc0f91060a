"""The activities that integration tests start in real workers."""

from __future__ import annotations
