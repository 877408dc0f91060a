"""Which form a human task asks to be filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from temporalex_django.authoring.forms import form_class
from temporalex_django.forms.schemas import annotation_of
from temporalex_django.models import HumanTask


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskFormSpec:
    """``type`` is an annotation (of a schema), or a form class of the project. ``digest`` changes with the form."""

    kind: Literal["none", "schema", "django"]
    type: Any = None
    digest: str = ""

    @property
    def field_names(self) -> list[str]:
        """Fields of a form class."""
        return [*self.type.base_fields] if self.kind == "django" else []


def form_spec_of(task: HumanTask) -> HumanTaskFormSpec:
    """The form with which a task is decided. Raises ``PayloadError`` where its class is not in this process."""
    stored_form = task.form
    if stored_form is None:
        return HumanTaskFormSpec(kind="none")
    if stored_form["kind"] == "type":
        return HumanTaskFormSpec(
            kind="schema", type=annotation_of(stored_form["schema"] or {}), digest=stored_form["digest"]
        )
    return HumanTaskFormSpec(kind="django", type=form_class(stored_form["name"]), digest=stored_form["digest"])
