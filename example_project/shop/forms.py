"""Forms of the customers and clerks."""

from __future__ import annotations

from typing import Any

from django import forms

from example_project.shop.models import Product
from example_project.shop.money import amount, cents


class AddForm(forms.Form):
    """Add a product to the cart. ``request_id`` is the message id of the update: a form sent twice counts once."""

    product = forms.ModelChoiceField(queryset=Product.objects.exclude(price=None))
    quantity = forms.IntegerField(min_value=1, max_value=999)
    request_id = forms.UUIDField()

    def line(self) -> dict[str, Any]:
        """Return the argument of the update."""
        product, quantity = self.cleaned_data["product"], self.cleaned_data["quantity"]
        total = amount(cents(f"{product.price:.2f}") * quantity)
        return {"product_id": product.pk, "quantity": quantity, "amount": total}


class AnswerForm(forms.Form):
    """Confirm or cancel an order."""

    answer = forms.ChoiceField(choices=[("confirm", "Confirm"), ("cancel", "Cancel")])


class DecisionForm(forms.Form):
    """A clerk's decision on a large order."""

    decision = forms.ChoiceField(choices=[("approve", "Approve"), ("reject", "Reject")])
    why = forms.CharField(max_length=200, required=False)
