"""The form that a human task asks people to fill in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from temporalex_django.authoring.forms import form_class
from temporalex_django.forms.schemas import annotation_of
from temporalex_django.models import HumanTask


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskFormSpec:
    """The form of a human task: none, one made from a schema, or a form class of the project.

    ``type`` is the annotation of the schema, or the form class. ``digest`` changes when the form changes.
    """

    kind: Literal["none", "schema", "django"]
    type: Any = None
    digest: str = ""

    @property
    def field_names(self) -> list[str]:
        """The field names of a form class; empty for the other kinds."""
        return [*self.type.base_fields] if self.kind == "django" else []


def form_spec_of(task: HumanTask) -> HumanTaskFormSpec:
    """Return the form that a task asks for. Raises ``PayloadError`` if this process does not have its class."""
    stored_form = task.form
    if stored_form is None:
        return HumanTaskFormSpec(kind="none")
    # The row keeps the schema of an annotation, so this process needs no code of the workflow to show the form.
    if stored_form["kind"] == "type":
        return HumanTaskFormSpec(
            kind="schema", type=annotation_of(stored_form["schema"] or {}), digest=stored_form["digest"]
        )
    return HumanTaskFormSpec(kind="django", type=form_class(stored_form["name"]), digest=stored_form["digest"])
