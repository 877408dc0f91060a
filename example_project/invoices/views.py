"""The desk where people issue invoices, and the address to which the bank reports payments."""

from __future__ import annotations

import hashlib
import hmac
import json
from decimal import Decimal
from http import HTTPStatus
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_required, permission_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from example_project.invoices.models import Invoice
from example_project.invoices.values import Paid, Terms
from example_project.invoices.workflows import Invoicing
from temporalex_django import errors

SIGNATURE = "X-Bank-Signature"
LATER = (
    errors.NotAccepting,
    errors.RunBlocked,
    errors.RunPaused,
    errors.WorkflowSwitchedOff,
    errors.TooManyUpdates,
    errors.UpdateTimeout,
)


class InvoiceForm(forms.ModelForm):  # type: ignore[type-arg] # generic in the stubs only
    """Form of a new invoice."""

    class Meta:
        model = Invoice
        fields = ("number", "customer", "total")

    def clean_number(self) -> str:
        """Check the number, which also names the run."""
        number = str(self.cleaned_data["number"])
        try:
            Invoicing.unique.id_for(number)
        except errors.InvalidId as exc:
            raise forms.ValidationError(exc.message) from exc
        return number


@login_required
@permission_required("invoices.add_invoice", raise_exception=True)
def desk(request: HttpRequest) -> HttpResponse:
    """List all invoices with the states of their runs, and show the form for a new one."""
    form = InvoiceForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        issue(form)
        return redirect("invoices:desk")
    invoices = Invoice.objects.with_workflow_state("open", "stage", workflow=Invoicing)
    return render(request, "invoices/desk.html", {"form": form, "invoices": invoices[:100]})


def issue(form: InvoiceForm) -> Invoice:
    """Save the invoice and start its run, in one transaction."""
    with transaction.atomic():
        invoice: Invoice = form.save()
        terms = Terms(number=invoice.number, customer=invoice.customer, total=invoice.total)
        Invoicing.start(terms, value=invoice.number, subject=invoice)
    return invoice


def signature(body: bytes) -> str:
    """Return the signature that the header of a request with this body must hold."""
    return hmac.new(settings.INVOICES_BANK_SECRET.encode(), body, hashlib.sha256).hexdigest()


@csrf_exempt  # the signature authenticates the caller; there is no cookie to abuse
@require_POST
def bank(request: HttpRequest) -> JsonResponse:
    """Take ``{"invoice", "reference", "amount"}`` from the bank.

    Answers 200 with the sum that is open then, again if the bank repeats the request. 503 asks the bank to repeat it.
    """
    if not hmac.compare_digest(signature(request.body).encode(), request.headers.get(SIGNATURE, "").encode()):
        return JsonResponse({"error": "the signature is not valid"}, status=HTTPStatus.FORBIDDEN)
    try:
        said: dict[str, Any] = json.loads(request.body)
        number = str(said["invoice"])
        paid = Paid(reference=str(said["reference"]), amount=Decimal(str(said["amount"])))  # a JSON number, too
    except (ValueError, ArithmeticError, KeyError, TypeError):
        return JsonResponse({"error": "invoice, reference and amount are required"}, status=HTTPStatus.BAD_REQUEST)
    try:
        left = Invoicing.get(number).update("paid", paid, id=paid.reference)
    except errors.WorkflowNotFound:
        return JsonResponse({"error": f"there is no invoice {number!r}"}, status=HTTPStatus.NOT_FOUND)
    except errors.InvalidId:
        return JsonResponse({"error": "that is not a valid reference"}, status=HTTPStatus.BAD_REQUEST)
    except LATER:  # the run is busy with an earlier payment, or paused, and will accept it later
        return JsonResponse({"error": "busy, please try again"}, status=HTTPStatus.SERVICE_UNAVAILABLE)
    except errors.UpdateRejected as exc:  # the validator refused it, or the run is closed
        return JsonResponse({"error": str(exc)}, status=HTTPStatus.CONFLICT)
    return JsonResponse({"open": left})
