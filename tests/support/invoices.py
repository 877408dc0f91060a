"""Invoices that people approve: a desk for the tests of human tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from django import forms

from temporalex_django import Escalation, Ok, Unique, Workflow, api

ACCOUNTING, HEADS = "accounting", "heads"


@dataclass
class Posting:
    """Where an invoice is booked."""

    account: Literal["goods", "services"]
    cost_centre: int
    note: str = ""


class PostingForm(forms.Form):
    """The same as a form of Django's."""

    account = forms.ChoiceField(choices=[("goods", "Goods"), ("services", "Services")])
    cost_centre = forms.IntegerField(min_value=1)

    def clean_cost_centre(self) -> int:
        if self.cleaned_data["cost_centre"] == 13:
            raise forms.ValidationError("Nobody sits there.")
        return int(self.cleaned_data["cost_centre"])


class InvoiceDesk(Workflow):
    """Asks accounting, after a day the heads as well, and gives up after three."""

    name = "test.InvoiceDesk"
    unique = Unique(key="invoice")

    async def run(self, args: Any) -> Any:
        decision = await api.approval(
            f"Approve invoice {args['number']} over {args['total']} EUR",
            groups=(ACCOUNTING,),
            due=timedelta(days=3),
            remind=timedelta(hours=8),
            escalate=Escalation(after=timedelta(days=1), groups=(HEADS,)),
            form={"schema": Posting, "django": f"{__name__}.PostingForm"}.get(args.get("form")),
            four_eyes=True,
        )
        by = None if decision.by is None else decision.by.name
        return Ok({"outcome": decision.outcome, "by": by, "data": decision.data, "comment": decision.comment})


class PlainQuestion(Workflow):
    """Asks the users that it is started with, without a form or a date."""

    name = "test.PlainQuestion"

    async def run(self, args: Any) -> Any:
        decision = await api.approval(
            str(args["title"]), users=args["users"], outcomes=args.get("outcomes", ("yes", "no"))
        )
        return Ok(decision.outcome)
