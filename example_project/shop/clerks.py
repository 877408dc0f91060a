"""The clerks' desk: the inbox of the clerk who is logged in, with the facts of each order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from example_project.shop.forms import DecisionForm
from example_project.shop.orders import CLERKS, ORDER, OrderProcess, review
from temporalex_django import errors
from temporalex_django.pages import asked_of

#: Orders on one page; those that are due first are at the top.
AT_ONCE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """An order as a clerk sees it."""

    number: str
    customer: str
    total: str
    lines: int
    due_at: datetime | None
    claimed: bool


def undecided(clerk: Any) -> Iterator[Undecided]:
    """Yield the orders that wait for this clerk, in the order in which they are due."""
    for one in asked_of(clerk, most=AT_ONCE, workflow=OrderProcess.name):
        context = OrderProcess.handle(id=one.task.workflow_id).instance().context
        sums = context.steps.validate_order
        yield Undecided(
            number=ORDER.value_of(one.task.workflow_id),
            customer=context.initial.customer,
            total=sums.total,
            lines=sums.lines,
            due_at=one.task.due_at,
            claimed=bool(one.task.claimed_by_key),
        )


def decide(number: str, *, approve: bool, why: str, by: Any) -> None:
    """Approve or reject an order. The order knows who may decide; raises the errors of a handle's ``decide``."""
    order = OrderProcess.handle(id=ORDER.id_for(number))
    order.decide("approved" if approve else "rejected", task=review.key, comment=why, by=by)


@require_safe
@never_cache
@login_required
def desk(request: HttpRequest) -> HttpResponse:
    """List the orders that wait for a decision."""
    _require_clerk(request.user)
    return render(request, "shop/review.html", {"orders": [*undecided(request.user)]})


@require_POST
@login_required
def decision(request: HttpRequest, number: str) -> HttpResponse:
    """Take a clerk's decision."""
    _require_clerk(request.user)
    form = DecisionForm(request.POST)
    if form.is_valid():
        approve = form.cleaned_data["decision"] == "approve"
        try:
            decide(number, approve=approve, why=form.cleaned_data["why"], by=request.user)
        except errors.ActionNotPermitted as error:
            raise PermissionDenied(str(error)) from error
        except errors.TemporalexError as error:
            messages.error(request, f"That did not work: {error}")
        else:
            messages.success(request, f"Order {number} is {'approved' if approve else 'rejected'}.")
    return redirect("shop:review")


def _require_clerk(user: Any) -> None:
    """Raise ``PermissionDenied`` unless the user is a clerk."""
    if not user.is_superuser and not user.groups.filter(name=CLERKS).exists():
        raise PermissionDenied
