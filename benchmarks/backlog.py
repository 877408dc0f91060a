"""Many starts at once, made by the database itself, so that they take no time of the benchmark."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import connection, transaction


def queue(cls: Any, count: int, args: Any = None) -> None:
    """Start ``count`` runs that appear at once: one is started, and the database copies it.

    The class must not need a unique id.
    """
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
                f"insert into bench_ids select n, {_after(first.chain_id)}, {_after(first.pk)} from generate_series(1, %s) n",
                [count - 1],
            )
            chain = {
                "id": "b.chain",
                "run_id": "b.run",
                "due_at": "t.due_at + b.n * interval '1 microsecond'",
                "open_key": "replace(t.open_key, %(own)s, b.chain::text)",
            }
            run = {"id": "b.run", "chain_id": "b.chain", "workflow_id": "b.chain::text"}
            for model, given in ((Chain, chain), (Instance, run)):
                names = [str(field.column) for field in model._meta.concrete_fields if not field.generated]
                values = ", ".join(given.get(name, f"t.{name}") for name in names)
                table, key = model._meta.db_table, first.chain_id if model is Chain else first.pk
                cursor.execute(
                    f"insert into {table} ({', '.join(names)}) select {values} from {table} t, bench_ids b"
                    " where t.id = %(key)s order by b.n",
                    {"key": key, "own": first.workflow_id},
                )


def _after(first: UUID) -> str:
    """Return SQL of an id that sorts after the first one, in the order of ``n``, like ids drawn one after the other."""
    soon = f"{(first.int >> 80) + 1:012x}"
    return (
        f"('{soon[:8]}-{soon[8:]}-7000-8' || lpad(to_hex(n >> 16), 3, '0') || '-' || lpad(to_hex(n & 65535), 4, '0')"
        f" || '{first.hex[-8:]}')::uuid"
    )
