from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Invoice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("order", models.CharField(db_index=True, max_length=200)),
                ("run_id", models.CharField(max_length=64, unique=True)),
                ("customer", models.CharField(max_length=255)),
                ("cents", models.BigIntegerField()),
                ("at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
        migrations.CreateModel(
            name="Shipment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("order", models.CharField(db_index=True, max_length=200)),
                ("run_id", models.CharField(max_length=64, unique=True)),
                ("parcel", models.CharField(max_length=64, unique=True)),
                ("shipped_at", models.DateTimeField(auto_now_add=True)),
                ("delivered_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
    ]
