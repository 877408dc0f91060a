"""Payloads: the codec that stores them, their conversion, and the parts that are stored for searches."""

from __future__ import annotations

from temporalex_django.core.payloads.codec import JsonCodec, PayloadCodec

__all__ = ["JsonCodec", "PayloadCodec"]
