"""Which form a human task asks to be filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from temporalex_django.authoring.forms import form_class
from temporalex_django.forms.schemas import annotation_of
from temporalex_django.models import HumanTask


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedForm:
    """``type`` is an annotation (of a schema), or a form class of the project. ``digest`` changes with the form."""

    kind: Literal["none", "schema", "django"]
    type: Any = None
    digest: str = ""

    @property
    def names(self) -> list[str]:
        """Fields of a form class."""
        return [*self.type.base_fields] if self.kind == "django" else []


def form_of(task: HumanTask) -> AskedForm:
    """The form with which a task is decided. Raises ``PayloadError`` where its class is not in this process."""
    said = task.form
    if said is None:
        return AskedForm(kind="none")
    if said["kind"] == "type":
        return AskedForm(kind="schema", type=annotation_of(said["schema"] or {}), digest=said["digest"])
    return AskedForm(kind="django", type=form_class(said["name"]), digest=said["digest"])
