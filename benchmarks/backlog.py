"""Many starts at once, made by the database itself: what a benchmark is not about must not take its time."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction


def queue(cls: Any, count: int, args: Any = None) -> None:
    """Start ``count`` runs: all are there at once, like one that was started and copied. Needs no unique id."""
    from temporalex_django.models import Chain, Instance

    if count < 1:
        return
    with transaction.atomic():
        if connection.vendor == "sqlite":
            for _ in range(count):
                cls.start(args)
            return
        first = Instance.objects.get(workflow_id=cls.start(args).id)
        with connection.cursor() as cursor:
            cursor.execute(
                "create temporary table if not exists bench_ids (n int, chain uuid, run uuid); truncate bench_ids"
            )
            cursor.execute(
                "insert into bench_ids select n, " + _after("%(chain)s") + ", " + _after("%(run)s") + " from generate_series(1, %(count)s) n",
                {"chain": str(first.chain_id), "run": str(first.pk), "count": count - 1},
            )  # fmt: skip
            for model, given in (
                (Chain, {"id": "b.chain", "run_id": "b.run", "open_key": "t.open_key || b.n"}),
                (Instance, {"id": "b.run", "chain_id": "b.chain", "workflow_id": "t.workflow_id || b.n"}),
            ):
                names = [str(field.column) for field in model._meta.concrete_fields if not field.generated]
                values = ", ".join(given.get(name, f"t.{name}") for name in names)
                table, key = model._meta.db_table, first.chain_id if model is Chain else first.pk
                cursor.execute(
                    f"insert into {table} ({', '.join(names)}) select {values} from {table} t, bench_ids b where t.id = %s",
                    [key],
                )


def _after(first: str) -> str:
    """An id that sorts behind the first one: its time, and a number."""
    return f"(left({first}, 14) || '7' || substr({first}, 16, 3) || '-8' || lpad(to_hex(n >> 16), 3, '0') || '-' || lpad(to_hex(n & 65535), 4, '0') || right({first}, 8))::uuid"
