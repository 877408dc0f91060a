"""The REST API of carts for the shop's own programs: each cart has the routes of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet
from rest_framework import routers, serializers, viewsets

from example_project.shop.models import Cart
from example_project.shop.workflows import ShoppingCart
from temporalex_django.rest import WorkflowViewMixin

if TYPE_CHECKING:
    Serializer = serializers.ModelSerializer[Cart]
    ReadOnly = viewsets.ReadOnlyModelViewSet[Cart]
else:
    Serializer, ReadOnly = serializers.ModelSerializer, viewsets.ReadOnlyModelViewSet  # generic in the stubs only


class CartOut(Serializer):
    """Owner and times of a cart."""

    class Meta:
        model = Cart
        fields = ("id", "user", "created_at", "closed_at")


class CartViewSet(WorkflowViewMixin, ReadOnly):
    """Customers see their own carts; ``<cart>/update/add_item/`` puts a line into one."""

    serializer_class = CartOut
    workflow = ShoppingCart

    def get_queryset(self) -> QuerySet[Cart]:
        carts, user = Cart.objects.all(), self.request.user
        return carts if user.is_staff else carts.filter(user__username=user.get_username())

    def workflow_ref(self, obj: Cart, runs: Any) -> str:
        return obj.pk


router = routers.SimpleRouter()
router.register("carts", CartViewSet, basename="cart")
