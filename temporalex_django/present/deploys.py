"""Texts about code that open runs need and that this process does not have, for a check before a deploy.

The command ``doctor --deploy`` prints them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.present.view_models import Diagnosis

MismatchKind = Literal["class", "activity", "step", "key", "payload", "replay", "timeout", "input"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMismatch:
    """Something that open runs need and that the code of this process lacks or cannot read.

    ``kind`` is its sort: a workflow class, an activity, a step of a graph, a key of the codec, a payload, or ("replay",
    "input") code that differs from a history, or ("timeout") a replay that took too long. ``name`` names it. ``count``
    is the number of runs that need it, among those that were read, and ``example`` is the business id of one of them.
    ``reason`` is the text of an error, or empty.
    """

    kind: MismatchKind
    name: str
    count: int
    example: str = ""
    reason: str = ""


def deploy_diagnoses(mismatches: Sequence[CodeMismatch], *, runs: int, replayed: int) -> list[Diagnosis]:
    """Return an error for each mismatch, or a single note if the code has all that open runs need.

    ``runs`` is the number of open runs, and ``replayed`` the number of histories that were replayed. ``doctor
    --deploy`` prints the result.
    """
    if mismatches:
        return [_mismatch_diagnosis(mismatch) for mismatch in mismatches]
    words = {"count": runs, "replayed": replayed}
    text = ngettext(
        "This code matches %(count)d open run. Histories replayed: %(replayed)d.",
        "This code matches %(count)d open runs. Histories replayed: %(replayed)d.",
        runs,
    )
    return [Diagnosis(severity="note", code="fits", text=text % words, next_step=_("Deploy it."))]


def cluster_diagnoses(count: int) -> list[Diagnosis]:
    """Return a warning about ``count`` open runs on a Temporal cluster, whose histories were not replayed."""
    if not count:
        return []
    text = ngettext(
        "%(count)d open run is on a Temporal cluster. Its history was not replayed with this code.",
        "%(count)d open runs are on a Temporal cluster. Their histories were not replayed with this code.",
        count,
    )
    next_step = _("Replay them with the Replayer of Temporal's SDK and TemporalexPlugin before you deploy.")
    return [Diagnosis(severity="warning", code="deploy_cluster", text=text % {"count": count}, next_step=next_step)]


def input_diagnoses(mismatches: Sequence[CodeMismatch], *, strict: bool) -> list[Diagnosis]:
    """Return a diagnosis for each place in the code that gives other inputs than the histories have.

    Each mismatch has the kind "input". Inputs of activities and children may change on purpose, so these are warnings.
    With ``strict``, they are errors (see decision 16).
    """
    # A recorded input stays valid for open runs: only the code decides whether the difference was intended.
    next_step = _(
        "If the change is intentional, deploy it: open runs keep their recorded input. Give new fields and parameters "
        "defaults, and sort values that come from a set. See: temporalex replay --open"
    )
    return [
        Diagnosis(
            severity="error" if strict else "warning",
            code="deploy_input",
            text=ngettext(
                "In %(count)d history of %(name)s, an input differs from the one that this code produces: %(why)s",
                "In %(count)d histories of %(name)s, an input differs from the one that this code produces: %(why)s",
                mismatch.count,
            )
            % {"count": mismatch.count, "name": mismatch.name, "why": mismatch.reason},
            next_step=next_step,
        )
        for mismatch in mismatches
    ]


def _mismatch_diagnosis(mismatch: CodeMismatch) -> Diagnosis:
    words = {"count": mismatch.count, "name": mismatch.name, "why": mismatch.reason, "run": mismatch.example}
    quoted_run = shlex.quote(mismatch.example)
    # Each text is a whole sentence with its own plural forms, so that translators never join parts.
    if mismatch.kind == "class":
        text = ngettext(
            "%(count)d open run uses %(name)s, which this code does not have.",
            "%(count)d open runs use %(name)s, which this code does not have.",
            mismatch.count,
        )
        next_step = _("Keep the class until its runs have closed, or move them first: manage.py temporalex migrate")
    elif mismatch.kind == "activity":
        text = ngettext(
            "%(count)d unfinished activity needs %(name)s, which this code does not have.",
            "%(count)d unfinished activities need %(name)s, which this code does not have.",
            mismatch.count,
        )
        next_step = _("Keep an activity with that name until its unfinished calls have ended.")
    elif mismatch.kind == "step":
        text = ngettext(
            "%(count)d open run is waiting at the step %(name)s, which this code does not have.",
            "%(count)d open runs are waiting at the step %(name)s, which this code does not have.",
            mismatch.count,
        )
        next_step = _(
            "Release this code as a new version of the class, and move the runs: manage.py temporalex migrate --map "
            "OLD=NEW"
        )
    elif mismatch.kind == "replay":
        text = ngettext(
            "The history of %(name)s %(run)s does not match this code: %(why)s",
            "%(count)d histories of %(name)s do not match this code. That of %(run)s: %(why)s",
            mismatch.count,
        )
        next_step = _(
            "Guard the change with api.patched, or give the class a new version; see: temporalex replay --open"
        )
    elif mismatch.kind == "timeout":
        text = ngettext(
            "The history of %(name)s %(run)s was not checked: %(why)s",
            "%(count)d histories of %(name)s were not checked. That of %(run)s: %(why)s",
            mismatch.count,
        )
        next_step = _("Replay it with more time: temporalex replay --open --timeout 60")
    # The kinds key and payload: both come from a codec that cannot read what another process wrote.
    else:
        text = ngettext(
            "This process cannot read a payload of %(name)s %(run)s: %(why)s",
            "This process cannot read payloads of %(count)d runs of %(name)s. That of %(run)s: %(why)s",
            mismatch.count,
        )
        next_step = _("Add the key to the codec. See: manage.py temporalex describe %(run)s") % {"run": quoted_run}
    return Diagnosis(severity="error", code=f"deploy_{mismatch.kind}", text=text % words, next_step=next_step)
