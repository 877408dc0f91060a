"""Whether the code that is here fits the runs that are open, in sentences: what a pipeline asks before a deploy."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.present.diagnosis import Diagnosis

LackKind = Literal["class", "activity", "step", "key", "payload", "replay", "input"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What open runs hold and this code does not have: ``name`` says what, ``example`` is a run that holds it.

    ``count`` runs need it, as far as they were looked at; ``why`` is what using it gave.
    """

    kind: LackKind
    name: str
    count: int
    example: str = ""
    why: str = ""


def fits(lacking: Sequence[Lack], *, runs: int, replayed: int) -> list[Diagnosis]:
    """All that does not fit; never empty. ``runs`` are open, ``replayed`` were gone through again."""
    if lacking:
        return [_told(one) for one in lacking]
    words = {"count": runs, "replayed": replayed}
    text = ngettext(
        "This code fits the %(count)d open run; %(replayed)d histories were replayed.",
        "This code fits the %(count)d open runs; %(replayed)d histories were replayed.",
        runs,
    )
    return [Diagnosis(severity="note", code="fits", text=text % words, next_step=_("Deploy it."))]


def other_inputs(found: Sequence[Lack], *, strict: bool) -> list[Diagnosis]:
    """Inputs of activities and children that are others now: perhaps on purpose."""
    then = _(
        "If that is meant, deploy it: open runs keep what is recorded. Give new fields and parameters defaults, and sort what "
        "comes from a set; see: temporalex replay --open"
    )
    return [
        Diagnosis(
            severity="error" if strict else "warning",
            code="deploy_input",
            text=ngettext(
                "%(count)d history of %(name)s has another input than this code gives: %(why)s",
                "%(count)d histories of %(name)s have another input than this code gives: %(why)s",
                one.count,
            )
            % {"count": one.count, "name": one.name, "why": one.why},
            next_step=then,
        )
        for one in found
    ]


def _told(one: Lack) -> Diagnosis:
    words = {"count": one.count, "name": one.name, "why": one.why, "run": one.example}
    ref = shlex.quote(one.example)
    if one.kind == "class":
        text = ngettext(
            "%(count)d open run is of %(name)s, which this code does not have.",
            "%(count)d open runs are of %(name)s, which this code does not have.",
            one.count,
        )
        then = _("Keep the class until they have ended, or move them first: manage.py temporalex migrate")
    elif one.kind == "activity":
        text = ngettext(
            "%(count)d activity under way is %(name)s, which this code does not have.",
            "%(count)d activities under way are %(name)s, which this code does not have.",
            one.count,
        )
        then = _("Keep it under that name until they have ended.")
    elif one.kind == "step":
        text = ngettext(
            "%(count)d open run waits in the step %(name)s, which this code does not have.",
            "%(count)d open runs wait in the step %(name)s, which this code does not have.",
            one.count,
        )
        then = _("Make it a new version of the class, and move them: manage.py temporalex migrate --map OLD=NEW")
    elif one.kind == "replay":
        text = _("The history of %(name)s %(run)s does not fit this code: %(why)s")
        then = _("Guard the change with api.patched, or give the class a new version; see: temporalex replay --open")
    else:
        text = _("A payload of %(name)s %(run)s cannot be read here: %(why)s")
        then = _("Give the codec of this code the key; see: manage.py temporalex describe %(run)s") % {"run": ref}
    return Diagnosis(severity="error", code=f"deploy_{one.kind}", text=text % words, next_step=then)
