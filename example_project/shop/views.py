"""Server-rendered pages; everything works without JavaScript."""

from __future__ import annotations

import uuid
from functools import wraps
from typing import TYPE_CHECKING, cast

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from example_project.shop.carts import CartView, close_cart, explain, open_cart, open_or_start_cart, view_cart
from example_project.shop.forms import AddForm, AnswerForm
from example_project.shop.models import Cart, Product
from example_project.shop.workflows import ShoppingCart
from temporalex_django import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.contrib.auth.models import User

PER_PAGE = 24
UPDATE_TIMEOUT = 5


def customers_post(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorate a view that takes a form from a customer.

    After a login, customers return to the page of the form: the address of the form itself takes no GET.
    """

    @require_POST
    @wraps(view)
    def guarded(request: HttpRequest, **values: str) -> HttpResponse:
        if request.user.is_authenticated:
            return view(request, **values)
        return redirect_to_login(_next(request) or reverse("shop:cart"))

    return guarded


@require_safe
def products(request: HttpRequest) -> HttpResponse:
    """List the products for sale; every word of the search has to occur."""
    search = " ".join(request.GET.get("q", "").replace("\0", "").split())[:100]
    wanted = Product.objects.exclude(price=None)
    for word in search.split():
        wanted = wanted.filter(
            Q(kind__icontains=word) | Q(category__icontains=word) | Q(department__icontains=word) | Q(id=word)
        )
    page = Paginator(wanted, PER_PAGE).get_page(request.GET.get("page"))
    for product in page.object_list:
        product.request_id = uuid.uuid4()  # type: ignore[attr-defined] # one id per form: sent twice, it counts once
    return render(request, "shop/products.html", {"page": page, "search": search})


@require_safe
@never_cache
@login_required
def cart(request: HttpRequest) -> HttpResponse:
    """Show the open cart."""
    mine = open_cart(_user(request))
    return render(request, "shop/cart.html", {"cart": _view(mine) if mine else None})


@customers_post
def add(request: HttpRequest) -> HttpResponse:
    """Put a product into the cart."""
    form = AddForm(request.POST)
    if not form.is_valid():
        messages.error(request, "That product cannot be added. Please check the quantity.")
        return _back(request)
    mine = open_or_start_cart(_user(request))
    try:
        ShoppingCart.handle(id=mine.pk).update(
            "add_item", form.line(), id=str(form.cleaned_data["request_id"]), timeout=UPDATE_TIMEOUT
        )
    except errors.TemporalexError as error:
        _complain(request, cart=mine, error=error)
    else:
        messages.success(request, f"Added {form.cleaned_data['quantity']} of {form.cleaned_data['product'].name}.")
    return _back(request)


@customers_post
def remove(request: HttpRequest) -> HttpResponse:
    """Take a product out of the cart."""
    mine = open_cart(_user(request))
    if mine is None:
        return redirect("shop:cart")
    try:
        ShoppingCart.handle(id=mine.pk).update("remove_item", request.POST.get("product", ""), timeout=UPDATE_TIMEOUT)
    except errors.TemporalexError as error:
        _complain(request, cart=mine, error=error)
    else:
        messages.success(request, "Removed.")
    return redirect("shop:cart")


@customers_post
def checkout(request: HttpRequest) -> HttpResponse:
    """Close the cart; its workflow charges and books."""
    mine = open_cart(_user(request))
    if mine is None:
        return redirect("shop:cart")
    if not _view(mine).lines:
        messages.error(request, "Your cart is empty.")
        return redirect("shop:cart")
    try:
        close_cart(mine)
    except errors.TemporalexError as error:
        _complain(request, cart=mine, error=error)
        return redirect("shop:cart")
    return redirect("shop:order", cart_id=mine.pk)


@require_safe
@never_cache
@login_required
def orders(request: HttpRequest) -> HttpResponse:
    """List the customer's orders."""
    mine = _user(request).carts.exclude(closed_at=None)
    page = Paginator(mine, PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "shop/orders.html", {"page": page})


@require_safe
@never_cache
@login_required
def order(request: HttpRequest, cart_id: str) -> HttpResponse:
    """Show an order; the page refreshes its status by itself."""
    return render(request, "shop/order.html", {"order": _view(_own_order(request, cart_id=cart_id))})


@require_safe
@never_cache
@login_required
def order_status(request: HttpRequest, cart_id: str) -> HttpResponse:
    """Return the part of the order's page that changes."""
    return render(request, "shop/_order_status.html", {"order": _view(_own_order(request, cart_id=cart_id))})


@customers_post
def answer(request: HttpRequest, cart_id: str) -> HttpResponse:
    """Confirm or cancel an order."""
    mine = _own_order(request, cart_id=cart_id)
    form = AnswerForm(request.POST)
    if form.is_valid():
        try:
            ShoppingCart.handle(id=mine.pk).update(form.cleaned_data["answer"], None, timeout=UPDATE_TIMEOUT)
        except errors.TemporalexError as error:
            _complain(request, cart=mine, error=error)
    return redirect("shop:order", cart_id=mine.pk)


def _user(request: HttpRequest) -> User:
    return cast("User", request.user)


def _own_order(request: HttpRequest, *, cart_id: str) -> Cart:
    return get_object_or_404(Cart.objects.exclude(closed_at=None), pk=cart_id, user=_user(request))


def _view(cart: Cart) -> CartView:
    try:
        return view_cart(cart.pk)
    except errors.WorkflowNotFound as error:
        message = f"There is no workflow for cart {cart.pk}."
        raise Http404(message) from error


def _complain(request: HttpRequest, *, cart: Cart, error: errors.TemporalexError) -> None:
    messages.error(request, explain(error))
    if isinstance(error, errors.WorkflowClosed | errors.WorkflowNotFound):
        # The run is gone, because an operator may end it: the next product starts a new cart.
        cart.delete()


def _next(request: HttpRequest) -> str:
    target = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return target if safe else ""


def _back(request: HttpRequest) -> HttpResponse:
    return redirect(_next(request) or "shop:products")
