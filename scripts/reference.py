"""Write the generated pages of the reference: ``python scripts/reference.py``. A test compares them with the code."""

from __future__ import annotations

import inspect
from pathlib import Path

from temporalex_django import conf, errors
from temporalex_django.core import current

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
_NOTE = "<!-- made by scripts/reference.py: do not edit -->\n"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        _NOTE,
        "One dictionary in the Django settings, and every key has a default. A key that is unknown, or a value of a wrong type,",
        "raises `NotConfigured` when a process starts and wherever it is used: a misspelt `PAYLOAD_CODEC` never stores plain JSON.",
        "`manage.py check` lists all that is wrong.",
        "",
        "    TEMPORALEX = {",
        '        "ACTIVITY_THREADS": 16,',
        "    }",
        "",
        "| setting | type | default | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{name}` | {kind} | `{default}` | {text} |" for name, kind, default, text in conf.documentation()]
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        _NOTE,
        "All are importable from `temporalex_django.errors` and derive from `TemporalexError`. The code is stable: REST answers, logs",
        "and blocked runs carry it.",
        "",
        "| code | class | cause | next step |",
        "|---|---|---|---|",
    ]
    for cls in vars(errors).values():
        if inspect.isclass(cls) and issubclass(cls, errors.TemporalexError):
            cause = " ".join((inspect.getdoc(cls) or "").split("\n\n", 1)[0].split()).replace("``", "`")
            lines.append(f"| `{cls.code}` | `{cls.__name__}` | {cause} | {cls.next_step} |")
    return "\n".join(lines) + "\n"


_PRIMITIVES = (
    *("activity", "sleep", "wait_for_signal", "publish_state", "now", "random", "uuid4", "patched", "deprecate_patch"),
    *(
        "phase",
        "parallel",
        "race",
        "update_state",
        "wait_condition",
        "cancel_requested",
        "wait_cancelled",
        "shield",
        "saga",
    ),
    *("child", "signal_external", "cancel_external", "info", "sender"),
)


def places_page() -> str:
    lines = [
        "# Places",
        "",
        _NOTE,
        "Where a primitive may be called. It is checked at the call and again at the `await`; a wrong place raises `NestingError`, no",
        "workflow at all `OutsideWorkflow`. A branch is one of `parallel` or `race`, in `run` or in a handler.",
        "",
        "| primitive | " + " | ".join(current.UNIT_KINDS) + " |",
        "|---|" + "---|" * len(current.UNIT_KINDS),
    ]
    for name in _PRIMITIVES:
        cells = ["no" if (name, kind) in current.FORBIDDEN else "yes" for kind in current.UNIT_KINDS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    lines += ["", "Why not:", ""]
    lines += [f"- `{name}` in a {kind}: {reason}." for (name, kind), reason in current.FORBIDDEN.items()]
    reads = ", ".join(f"`{name}`" for name in sorted(current.READS))
    lines += [
        "",
        f"Validators, queries and predicates of `wait_condition` may only read: {reads}. A closure of `update_state` may call none of them.",
        "`Async` may be returned by a handler of a phase only: not by `run`, not by a branch, not by an async handler.",
    ]
    return "\n".join(lines) + "\n"


PAGES = {"places.md": places_page, "settings.md": settings_page, "errors.md": errors_page}

if __name__ == "__main__":
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
