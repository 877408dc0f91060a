"""Storage parameters and indexes on PostgreSQL that Django's schema language cannot express."""

from __future__ import annotations

from typing import Any

from temporalex_django.db.dialects.base import find_dialect

#: Hot tables: vacuum removes dead rows early, and rewritten rows find space on their own page (heap-only updates).
_VACUUM = "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0"
_SETTINGS = {
    "temporalex_chain": f"fillfactor = 70, {_VACUUM}",
    "temporalex_instance": "fillfactor = 85",
    "temporalex_message": f"fillfactor = 90, {_VACUUM}",
    "temporalex_activity_task": f"fillfactor = 85, {_VACUUM}",
    "temporalex_worker": f"fillfactor = 50, {_VACUUM}",
    "temporalex_limit": f"fillfactor = 50, {_VACUUM}",
    "temporalex_permit": f"fillfactor = 85, {_VACUUM}",
}
#: When runs closed, by ranges of pages. From PostgreSQL 16 on such an index allows heap-only updates, so a run that
#: completes pays nothing for it. On earlier versions it is not created.
_CLOSED = (
    "CREATE INDEX temporalex_instance_closed ON temporalex_instance USING brin (closed_at)"
    " WITH (pages_per_range = 32, autosummarize = on)"
)
_SUMMARIZING = 160_000
#: Tags are set when a run is started, and never again. A run without tags pays nothing.
_TAGS = "CREATE INDEX temporalex_instance_tags ON temporalex_instance USING gin (tags jsonb_path_ops) WHERE tags IS NOT NULL"


def tune_hot_tables(_apps: Any, schema_editor: Any) -> None:
    """Set storage parameters, and create the indexes of closed runs and of tags; a function for ``RunPython``.

    Does nothing on other databases than PostgreSQL.
    """
    dialect = find_dialect(schema_editor.connection.alias)
    if dialect is not None and dialect.tunes_tables:
        for table, parameters in _SETTINGS.items():
            schema_editor.execute(f"ALTER TABLE {table} SET ({parameters})")
        schema_editor.execute(_TAGS)
        if schema_editor.connection.pg_version >= _SUMMARIZING:
            schema_editor.execute(_CLOSED)
