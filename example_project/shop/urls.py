"""Pages of the shop."""

from __future__ import annotations

from django.urls import path

from example_project.shop import carrier, clerks, views

app_name = "shop"

urlpatterns = [
    path("", views.products, name="products"),
    path("cart/", views.cart, name="cart"),
    path("cart/add/", views.add, name="add"),
    path("cart/remove/", views.remove, name="remove"),
    path("cart/checkout/", views.checkout, name="checkout"),
    path("orders/", views.orders, name="orders"),
    path("orders/<str:cart_id>/", views.order, name="order"),
    path("orders/<str:cart_id>/status/", views.order_status, name="order-status"),
    path("orders/<str:cart_id>/answer/", views.answer, name="answer"),
    path("review/", clerks.desk, name="review"),
    path("review/<str:number>/", clerks.decision, name="decision"),
    path("carrier/", carrier.report, name="carrier"),
]
