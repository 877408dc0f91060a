"""Write the generated pages of the reference: ``python scripts/reference.py``. A test compares them with the code."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import django

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


def commands_page() -> str:
    from temporalex_django.management import exits  # noqa: PLC0415 - Django is set up by now
    from temporalex_django.management.commands.temporalex import Command  # noqa: PLC0415 - as above

    lines = [
        "# Commands",
        "",
        _NOTE,
        "`manage.py temporalex SUBCOMMAND`. `RUN` is a business id, which means its newest run, or a run id. Ids and JSON may hold anything",
        "that the shell lets through: quote them. What begins with a dash stands behind `--`.",
        "",
        "People are shown tables as wide as the terminal; without a terminal a row is a line. With `--json` it is JSON: `list`, `history`,",
        "`export` and `worker` print a line for each run, event, file and thing that happens, as many as there are, in flat memory; the others",
        "print one document. Long work (`bulk --wait`, `migrate`, `replay`, `export`, `doctor --deploy`) shows how far it is on the standard",
        "error, and what cannot be undone asks first, both at a terminal only; `--yes` is the answer. What may go wrong is one sentence on the",
        "standard error with the next step, without a traceback (`--traceback` shows it), and an exit status:",
        "",
        "| exit status | meaning |",
        "|---|---|",
        *(f"| {status} | {text} |" for status, text in exits.MEANINGS.items()),
        "",
        "Commands do everything, in the name of the account of the operating system, which the audit notes; with `--as-user NAME` they do what",
        "that user may do, to the runs that there are for him. `--settings`, `--pythonpath`, `--traceback`, `--verbosity` and their kin may",
        "stand behind the subcommand as well.",
    ]
    for name, parser in _subparsers(Command().create_parser("manage.py", "temporalex")).items():
        lines += ["", f"## {name}", "", parser.description.replace("%%", "%").rstrip(), ""]
        lines += [f"    temporalex {name} {' '.join(_usage(parser))}".rstrip(), ""]
        told = [(label, action) for action in parser._actions if (label := _label(action)) is not None]
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{label}` | {_escaped(action.help or '')} |" for label, action in told]
        lines += _nested(parser)
    return "\n".join(lines) + "\n"


def _subparsers(parser: Any) -> dict[str, Any]:
    found: dict[str, Any] = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})
    return found


def _usage(parser: Any) -> list[str]:
    required = [a for a in parser._actions if a.required and a.option_strings]
    named = [f"{a.option_strings[-1]} {a.metavar or a.dest.upper()}" for a in required]
    return [*(_label(a) or "" for a in parser._actions if not a.option_strings and _label(a)), *named]


def _label(action: Any) -> str | None:
    """As a reader writes it; None for what is in every command."""
    if argparse.SUPPRESS in (action.help, action.dest) or action.dest == "help":
        return None
    if isinstance(action, argparse._SubParsersAction):
        return str(action.metavar)
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return {"*": f"[{value} …]", "?": f"[{value}]"}.get(str(action.nargs), str(value))
    return str(action.option_strings[-1]) + ("" if action.nargs == 0 else f" {value}")


def _nested(parser: Any) -> list[str]:
    """What stands behind a subcommand that has subcommands."""
    lines = []
    for name, one in _subparsers(parser).items():
        lines.append(f"- `{name}`: {_escaped(one.description or '')}")
    return ["", *lines] if lines else []


def _escaped(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("%%", "%").replace("``", "`")


PAGES = {
    "commands.md": commands_page,
    "places.md": places_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
}

if __name__ == "__main__":
    sys.path.insert(0, str(REFERENCE.parent.parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
