"""The contracts of addresses that are about runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from temporalex_django.actions.steering import OperatorRunAction
from temporalex_django.authoring.listing import NEWEST_FIRST, ORDERS
from temporalex_django.rest import serializers
from temporalex_django.rest.base import LONGEST_WAIT
from temporalex_django.rest.contract import Contract, Form, Parameter, Scope
from temporalex_django.rest.pagination import MOST_ROWS_A_PAGE, ROWS_A_PAGE
from temporalex_django.rest.steering import body_of

#: Of every address of one run.
WORKFLOW = Parameter(name="workflow", help="Name of the class, where several used that business id.")
UPDATE_ID = Parameter(name="id", required=True, help="That it was sent with.")
PAGES = (Parameter(name="cursor", help="As `next` and `previous` have it."), Parameter(name="limit", kind="integer"))
ORDER = Parameter(
    name="order",
    help=f"One of {', '.join(ORDERS)}; {NEWEST_FIRST} unless given. By when they closed, or go on by themselves: those "
    "that do.",
)
BY_SEQ = (
    Parameter(name="after", kind="integer", help="A seq: what comes behind it."),
    Parameter(name="limit", kind="integer", help=f"{ROWS_A_PAGE} unless given, at most {MOST_ROWS_A_PAGE}."),
)
WAIT = Parameter(name="wait", kind="number", help=f"Seconds to wait for it, at most {LONGEST_WAIT:g}.")


def view(summary: str, answers: Any, *query: Parameter, several: bool = False) -> Contract:
    """The contract of what looks at runs."""
    return Contract(
        operation="view",
        permission="view_instance",
        summary=summary,
        query=query,
        answers=answers if isinstance(answers, dict) else {200: answers},
        several=several,
    )


def does(
    operation: str,
    summary: str,
    body: Form,
    answers: Mapping[int, Form | None],
    *query: Parameter,
    permission: str = "",
    scope: Scope = "message",
    keyed: bool = False,
) -> Contract:
    """The contract of what does something to a run."""
    return Contract(
        operation=operation,
        permission=permission or f"{operation}_instance",
        summary=summary,
        scope=scope,
        query=query,
        body=body,
        answers=answers,
        keyed=keyed,
    )


@cache
def steering_contract(action: type[OperatorRunAction[Any]]) -> Contract:
    """The contract of what an operator does to a run."""
    run = serializers.RunOut
    return Contract(
        operation=action.name,
        permission=action.permission,
        summary=str(action.label),
        scope="act",
        query=(WORKFLOW,),
        body=body_of(action),
        answers={200: run, 201: run, 204: None},
        keyed=True,
        matched=True,
    )
