"""Inputs of the runs that a schedule starts."""

from __future__ import annotations

from typing import Any

from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import input_or_default
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import require_readable


def plain_input(workflow: type[Startable], args: Any, *, limit: int = codec.MAX_BYTES) -> Any:
    """Return the input of a run of the class as plain JSON types. If ``args`` is None, return the default of ``run``.

    ``limit`` is the largest number of encoded bytes. Raises ``PayloadError`` if the input cannot be encoded, is too
    large, or does not fit the class.
    """
    concrete = workflow.choose(None, {})
    label = f"the input of {concrete.name}"
    plain_args = codec.to_plain(input_or_default(concrete, args), label=label, limit=limit)
    codec.convert(plain_args, concrete.definition.args_type, label=label)
    require_readable(args, plain_args, lambda: concrete.definition.args_type, label=label)
    return plain_args
