"""The addresses that customers, clerks and the payment provider call."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_required, permission_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from example_project.billing.models import Bill, Subscription
from example_project.billing.values import CENT, Account, RefundRequest
from example_project.billing.workflows import Refunding, Subscribing, change_plan
from example_project.billing.workflows import cancel as cancel_handler
from temporalex_django import errors

SIGNATURE = "X-Provider-Signature"
TRIAL = timedelta(days=14)


class SubscribeForm(forms.ModelForm):  # type: ignore[type-arg] # generic in the stubs only
    """Form of a new subscription."""

    class Meta:
        model = Subscription
        fields = ("customer", "price")


class PlanForm(forms.Form):
    """Form of another plan."""

    price = forms.DecimalField()  # the validator of the run has the rules


class RefundForm(forms.Form):
    """Form of a refund."""

    amount = forms.DecimalField(min_value=CENT, decimal_places=2)
    reason = forms.CharField(max_length=200)


def _invalid(form: forms.BaseForm) -> JsonResponse:
    return JsonResponse({"errors": form.errors}, status=HTTPStatus.BAD_REQUEST)


# Subscribe begins here.
@require_POST
@login_required
def subscribe(request: HttpRequest) -> JsonResponse:
    """Create a subscription and start its run, in one transaction."""
    form = SubscribeForm(request.POST)
    if not form.is_valid():
        return _invalid(form)
    with transaction.atomic():
        subscription: Subscription = form.save()
        account = Account(
            subscription=subscription.pk,
            customer=subscription.customer,
            price=subscription.price,
            trial_ends=timezone.now() + TRIAL,
        )
        # No ``by``: customers have no permissions for runs, and this view decides what they may do.
        Subscribing.start(account, value=subscription.pk, subject=subscription)
    return JsonResponse({"subscription": subscription.pk}, status=HTTPStatus.CREATED)


@require_POST
@login_required
def plan(request: HttpRequest, pk: int) -> JsonResponse:
    """Change the price. The answer has the types that the handler declares."""
    form = PlanForm(request.POST)
    if not form.is_valid():
        return _invalid(form)
    try:
        answer = Subscribing.get(pk).update(change_plan, form.cleaned_data["price"])
    except errors.UpdateRejected as exc:  # the validator refused it, or the subscription is closed or busy
        return JsonResponse({"error": str(exc)}, status=HTTPStatus.CONFLICT)
    return JsonResponse({"extra": str(answer.extra), "price": str(answer.price), "since": answer.since.isoformat()})


# Subscribe ends here.


@require_POST
@login_required
def cancel(request: HttpRequest, pk: int) -> JsonResponse:
    """Cancel a subscription."""
    try:
        answer = Subscribing.get(pk).update(cancel_handler, None)
    except errors.UpdateRejected as exc:
        return JsonResponse({"error": str(exc)}, status=HTTPStatus.CONFLICT)
    return JsonResponse({"until": answer.until.isoformat()})


@require_POST
@permission_required("billing.change_bill", raise_exception=True)
def refund(request: HttpRequest, pk: int) -> JsonResponse:
    """Ask for a refund in the clerk's name: somebody else has to approve it.

    With ``by``, the clerk needs the permission ``temporalex_django.start_instance``.
    """
    bill = get_object_or_404(Bill.objects.select_related("subscription"), pk=pk, paid_at__isnull=False)
    form = RefundForm(request.POST)
    if not form.is_valid():
        return _invalid(form)
    if form.cleaned_data["amount"] > bill.amount - bill.refunded:
        return JsonResponse({"error": f"{bill.amount - bill.refunded} EUR were paid"}, status=HTTPStatus.CONFLICT)
    asked = RefundRequest(
        bill=bill.pk,
        customer=bill.subscription.customer,
        charge=bill.charge,
        amount=form.cleaned_data["amount"],
        reason=form.cleaned_data["reason"],
    )
    try:
        Refunding.start(asked, value=bill.pk, subject=bill, by=request.user)
    except errors.AlreadyRunning:
        return JsonResponse({"error": "a refund of this bill is open"}, status=HTTPStatus.CONFLICT)
    return JsonResponse({}, status=HTTPStatus.ACCEPTED)


# Webhook begins here.
def signature(body: bytes) -> str:
    """Return the signature that the header of a request with this body must hold."""
    return hmac.new(settings.BILLING_PROVIDER_SECRET.encode(), body, hashlib.sha256).hexdigest()


@csrf_exempt  # the signature authenticates the provider; there is no cookie to abuse
@require_POST
def provider(request: HttpRequest) -> HttpResponse:
    """Take ``{"id", "subscription", "bill", "charge"}`` when a customer has paid on the page of the provider."""
    if not hmac.compare_digest(signature(request.body).encode(), request.headers.get(SIGNATURE, "").encode()):
        return HttpResponse(status=HTTPStatus.FORBIDDEN)
    try:
        event: dict[str, Any] = json.loads(request.body)
        payment = {"bill": int(event["bill"]), "charge": str(event["charge"])}
        run = Subscribing.get(int(event["subscription"]))
        run.signal("paid", payment, id=str(event["id"]))  # with this id, a second event changes nothing
    except (ValueError, KeyError, TypeError, errors.InvalidId):
        return HttpResponse(status=HTTPStatus.BAD_REQUEST)
    except errors.WorkflowNotFound:
        return HttpResponse(status=HTTPStatus.NOT_FOUND)  # the provider tries it again
    except errors.WorkflowClosed:
        pass  # the subscription has ended
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


# Webhook ends here.
