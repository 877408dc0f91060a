from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0002_orders"),
    ]

    operations = [
        migrations.CreateModel(
            name="SalesReport",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("run_id", models.CharField(max_length=64, unique=True)),
                ("day", models.DateField()),
                ("slot", models.DateTimeField(blank=True, null=True)),
                ("bookings", models.BigIntegerField(default=0)),
                ("units", models.BigIntegerField(default=0)),
                ("invoices", models.BigIntegerField(default=0)),
                ("cents", models.BigIntegerField(default=0)),
                ("at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
        migrations.AddField(
            model_name="invoice",
            name="report",
            field=models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="invoice_rows",
                to="shop.salesreport",
            ),
        ),
        migrations.AddField(
            model_name="stockmovement",
            name="report",
            field=models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="movements",
                to="shop.salesreport",
            ),
        ),
    ]
