"""What the migration sets on PostgreSQL and Django's schema language cannot say."""

from __future__ import annotations

from typing import Any

from temporalex_django.db.dialects.base import dialect_of

#: Hot tables: dead rows are gathered early, and rewritten rows find room on their own page (heap-only updates).
_VACUUM = "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0"
_SETTINGS = {
    "temporalex_chain": f"fillfactor = 70, {_VACUUM}",
    "temporalex_instance": "fillfactor = 85",
    "temporalex_message": f"fillfactor = 90, {_VACUUM}",
    "temporalex_activity_task": f"fillfactor = 85, {_VACUUM}",
    "temporalex_worker": f"fillfactor = 50, {_VACUUM}",
}


def tune_hot_tables(_apps: Any, schema_editor: Any) -> None:
    """Set storage parameters; nothing on other databases."""
    dialect = dialect_of(schema_editor.connection.alias)
    if dialect is not None and dialect.tunes_tables:
        for table, parameters in _SETTINGS.items():
            schema_editor.execute(f"ALTER TABLE {table} SET ({parameters})")
