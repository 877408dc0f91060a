"""Functions that build the contracts of the routes about runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from temporalex_django.authoring.run_filters import NEWEST_FIRST, ORDERS
from temporalex_django.operations.runs.operator_action import OperatorRunAction
from temporalex_django.rest import serializers
from temporalex_django.rest.base import MAX_WAIT_SECONDS
from temporalex_django.rest.lists import DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS
from temporalex_django.rest.requests import Contract, Parameter, Scope, SerializerType
from temporalex_django.rest.runs import body_class_of

#: Parameter of every address of one run.
WORKFLOW = Parameter(
    name="workflow", help="Name of the workflow class. Give it if several classes have used the business id."
)
UPDATE_ID = Parameter(name="id", required=True, help="The id with which the update was sent.")
PAGES = (
    Parameter(name="cursor", help="The cursor in `next` or `previous` of another page."),
    Parameter(name="limit", kind="integer"),
)
ORDER = Parameter(
    name="order",
    help=f"One of {', '.join(ORDERS)}; {NEWEST_FIRST} by default. An order by closing time or by due time lists only "
    "the runs that have one.",
)
BY_SEQ = (
    Parameter(name="after", kind="integer", help="A seq. The page begins after it."),
    Parameter(
        name="limit", kind="integer", help=f"Rows of a page: {DEFAULT_PAGE_ROWS} by default, at most {MAX_PAGE_ROWS}."
    ),
)
WAIT = Parameter(name="wait", kind="number", help=f"Seconds to wait for the response, at most {MAX_WAIT_SECONDS:g}.")


def read_contract(summary: str, answers: Any, *query: Parameter, several: bool = False) -> Contract:
    """Return the contract of a method that reads runs.

    ``answers`` is the serializer of status 200, or a mapping by status. ``query`` are its parameters. The other
    arguments are fields of ``Contract``.
    """
    return Contract(
        operation="view",
        permission="view_instance",
        summary=summary,
        query=query,
        answers=answers if isinstance(answers, dict) else {200: answers},
        several=several,
    )


def command_contract(
    operation: str,
    summary: str,
    body: SerializerType,
    answers: Mapping[int, SerializerType | None],
    *query: Parameter,
    permission: str = "",
    scope: Scope = "message",
    keyed: bool = False,
) -> Contract:
    """Return the contract of a method that starts a run or sends it a message.

    The arguments are the fields of ``Contract``; ``permission`` is by default that of the operation, such as
    ``signal_instance``.
    """
    return Contract(
        operation=operation,
        # The model permissions of ``Instance`` are named after the operations.
        permission=permission or f"{operation}_instance",
        summary=summary,
        scope=scope,
        query=query,
        body=body,
        answers=answers,
        keyed=keyed,
    )


@cache
def operator_contract(action: type[OperatorRunAction[Any]]) -> Contract:
    """Return the contract of the REST method that performs an operator's action, such as ``Cancel``, on a run."""
    run_serializer = serializers.RunOut
    return Contract(
        operation=action.name,
        permission=action.permission,
        summary=str(action.label),
        scope="act",
        query=(WORKFLOW,),
        body=body_class_of(action),
        # 200: the run as it is then; 201: a new run; 204: the run was deleted.
        answers={200: run_serializer, 201: run_serializer, 204: None},
        keyed=True,
        matched=True,
    )
