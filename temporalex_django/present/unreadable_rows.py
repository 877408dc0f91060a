"""The diagnoses of rows that no process can read, each with its repair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from django.utils.translation import gettext as _

from temporalex_django.present.formatting import join_with_and
from temporalex_django.present.project_view import UnreadableRow
from temporalex_django.present.view_models import Diagnosis

#: Code of the findings about rows that cannot be read.
UNREADABLE_ROW: Final = "unreadable_row"


def unreadable_diagnoses(rows: Iterable[UnreadableRow]) -> Iterator[Diagnosis]:
    """Yield an error for each of the rows. It names the table, the row and the columns, but nothing of their values."""
    for row in rows:
        words = {
            "table": row.table,
            "columns": join_with_and(row.columns),
            "sets": ", ".join(f"{column} = …" for column in row.columns),
            "condition": row.condition,
            "id": row.id,
        }
        text = _("A row of %(table)s cannot be read: the value of %(columns)s is not one that this package writes.")
        step = _("Correct it: UPDATE %(table)s SET %(sets)s WHERE %(condition)s")
        if row.id:
            text = _(
                "A row of the run %(id)s in %(table)s cannot be read: the value of %(columns)s is not one that this package writes."
            )
            step = _(
                "Correct it: UPDATE %(table)s SET %(sets)s WHERE %(condition)s; a blocked run then continues by itself. Or terminate and delete the run."
            )
        yield Diagnosis(
            severity="error",
            code=UNREADABLE_ROW,
            text=text % words,
            next_step=step % words,
            evidence=[f"{row.table}: {row.condition}"],
            about=row.table,
        )
