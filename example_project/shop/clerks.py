"""The clerks' desk: orders that wait for a decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from example_project.shop.forms import DecisionForm
from example_project.shop.orders import CLERKS, OrderProcess, number_of, review
from temporalex_django import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """An order as a clerk sees it."""

    number: str
    customer: str
    total: str
    lines: int


def undecided() -> Iterator[Undecided]:
    """Orders that wait for a clerk, newest first."""
    for handle in OrderProcess.list(status="waiting"):
        instance = handle.instance()
        if review in instance.waiting_steps:
            sums = instance.context.steps.validate_order
            yield Undecided(
                number=number_of(instance),
                customer=instance.context.initial.customer,
                total=sums.total,
                lines=sums.lines,
            )


def decide(number: str, *, approve: bool, why: str, by: Any) -> None:
    """Approve or reject an order. Raises what ``OrderProcess.resume`` raises; it knows who may."""
    OrderProcess.resume(number, "approved" if approve else "rejected", step=review, data={"why": why}, by=by)


@require_safe
@never_cache
@login_required
def desk(request: HttpRequest) -> HttpResponse:
    """List what is to be decided."""
    user: Any = request.user
    if not user.is_superuser and not user.groups.filter(name=CLERKS).exists():
        raise PermissionDenied
    return render(request, "shop/review.html", {"orders": list(undecided())})


@require_POST
@login_required
def decision(request: HttpRequest, number: str) -> HttpResponse:
    """Take a clerk's decision."""
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
