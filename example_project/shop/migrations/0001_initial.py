from __future__ import annotations

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="CollectedEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("collector", models.CharField(max_length=255)),
                ("generation", models.PositiveIntegerField()),
                ("position", models.PositiveIntegerField()),
                ("payload", models.JSONField()),
            ],
            options={
                "ordering": ("collector", "generation", "position"),
            },
        ),
        migrations.CreateModel(
            name="Notice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=128, unique=True)),
                ("recipient", models.CharField(max_length=255)),
                ("subject", models.CharField(max_length=255)),
                ("body", models.TextField(blank=True)),
                ("at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-at",),
            },
        ),
        migrations.CreateModel(
            name="Product",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("department", models.CharField(blank=True, max_length=100)),
                ("category", models.CharField(blank=True, max_length=100)),
                ("kind", models.CharField(blank=True, max_length=100)),
                ("package_size", models.CharField(blank=True, max_length=50)),
                ("price", models.DecimalField(blank=True, decimal_places=2, max_digits=10, null=True)),
            ],
            options={
                "ordering": ("department", "category", "kind", "id"),
            },
        ),
        migrations.CreateModel(
            name="Stock",
            fields=[
                ("product_id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("on_hand", models.BigIntegerField(default=0)),
                ("booked", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name_plural": "stock",
                "ordering": ("product_id",),
            },
        ),
        migrations.CreateModel(
            name="StockMovement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("run_id", models.CharField(max_length=64)),
                ("cart_id", models.CharField(db_index=True, max_length=255)),
                ("product_id", models.CharField(max_length=32)),
                ("kind", models.CharField(choices=[("sale", "Sale"), ("return", "Return")], max_length=8)),
                ("quantity", models.BigIntegerField()),
                ("at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run_id", "kind", "product_id"), name="one_booking_per_run_and_product"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Cart",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="carts", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ("-created_at",),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("closed_at", None)), fields=("user",), name="one_open_cart_per_user"
                    )
                ],
            },
        ),
    ]
