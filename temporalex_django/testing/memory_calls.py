"""Context managers that call the hooks of interceptors around client calls on runs in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from temporalex_django.authoring.requests import RunAddress, RunRequest, StartRequest
from temporalex_django.core.messages.sender import Headers, check_headers
from temporalex_django.interceptors import ClientCall
from temporalex_django.interceptors.chain import around, chain

#: Requests that are no operations, so that interceptors do not see them.
_READS = frozenset({"human_tasks", "instance", "result", "describe", "history", "run_id", "run_ids"})


@contextmanager
def start_call(request: StartRequest, operation: str = "start") -> Iterator[StartRequest]:
    """Return a context manager for a start, in whose block the hooks of interceptors have been entered.

    Its value (``as``) is the request with the headers that the hooks have left.
    """
    if not chain.client_call:
        yield request
        return
    call = ClientCall(
        operation=operation,
        workflow=request.workflow.name,
        workflow_id=request.id,
        headers=dict(request.headers or {}),
    )
    with around(chain.client_call, call, keeps_errors=True):
        yield replace(request, headers=call.headers)


@contextmanager
def request_call(
    env: Any, address: RunAddress, request: RunRequest[Any]
) -> Iterator[tuple[RunRequest[Any], Headers | None]]:
    """Return a context manager for a request on a run, in whose block the hooks of interceptors have been entered.

    Its value (``as``) is the pair of the request and its headers, both as the hooks have left them.
    """
    if not chain.client_call or request.operation in _READS:
        yield request, None
        return
    inputs, runs = request.inputs, () if address.chain_id is None else env.run_ids(address.chain_id)
    message = inputs.get("signal") or inputs.get("update") or inputs.get("query")
    call = ClientCall(
        operation=request.operation,
        workflow=env.row(runs[-1]).facts.workflow if runs else None,
        workflow_id=address.id,
        run_id=str(address.run_id or runs[-1]) if runs else None,
        message=message,
        headers=dict(inputs.get("headers") or {}),
    )
    with around(chain.client_call, call, keeps_errors=True):
        headers = check_headers(call.headers, label=f"{request.operation} with interceptors")
        if request.operation in ("signal", "update"):
            request = RunRequest(request.operation, request.by, {**inputs, "headers": headers})
        yield request, headers
