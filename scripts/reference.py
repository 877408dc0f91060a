"""Write the generated pages of the reference: ``python scripts/reference.py``. A test compares them with the code."""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django

from temporalex_django import conf, errors
from temporalex_django.core.history.events import CLOSING, KINDS
from temporalex_django.core.primitive_table import (
    ACTIVITY,
    ASYNC_WITH,
    AT_ONCE,
    AWAIT,
    CONTEXTS_OF_RUN,
    PRIMITIVES,
    UNIT_KINDS,
)
from temporalex_django.telemetry.definitions import FACTS_SECONDS, LABELS_LIMITED, MAX_NAMES, METRICS, OTHER

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
PACKAGE = REFERENCE.parent.parent / "temporalex_django"
_NOTE = "<!-- made by scripts/reference.py: do not edit -->\n"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        _NOTE,
        "All settings are keys of one dictionary in the Django settings, and every key has a default. An unknown key, or a value of a",
        "wrong type, raises `NotConfigured` when a process starts and at every use, so a misspelt `PAYLOAD_CODEC` never causes payloads",
        "to be stored as plain JSON. `manage.py check` lists all errors.",
        "",
        "    TEMPORALEX = {",
        '        "ACTIVITY_THREADS": 16,',
        "    }",
    ]
    for name, kind, default, text in conf.documentation():  # the texts are too long for a table
        values = re.sub(r"'[^']*'", r"`\g<0>`", kind)
        lines += ["", f"## `{name}`", "", f"Value: {values}. Default: `{default}`.", "", text]
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        _NOTE,
        "You can import all errors from `temporalex_django.errors`. They derive from `TemporalexError`. The code is stable: REST responses,",
        "logs and blocked runs contain it.",
        "",
        "| code | class | cause | next step |",
        "|---|---|---|---|",
    ]
    base = errors.TemporalexError
    classes = {cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, base)}
    for cls in sorted(classes, key=lambda cls: (cls is not base, cls.code)):
        cause = " ".join((inspect.getdoc(cls) or "").split("\n\n", 1)[0].split()).replace("``", "`")
        lines.append(f"| `{cls.code}` | `{cls.__name__}` | {cause} | {cls.next_step} |")
    return "\n".join(lines) + "\n"


_USAGES = {AWAIT: "`await`", ASYNC_WITH: "`async with`", AT_ONCE: "at once"}


def places_page() -> str:
    places = (*UNIT_KINDS, *CONTEXTS_OF_RUN)
    lines = [
        "# Places",
        "",
        _NOTE,
        "The table shows where you may call each primitive, and how to use the call. A primitive with `await` or `async with` acts when it",
        "is awaited or entered. The place is checked at the call and again then. A wrong place raises `NestingError`; a call outside a",
        "workflow raises `OutsideWorkflow`. A branch belongs to `parallel` or `race`, in `run` or in a handler. `api.task` and calls of",
        "activities have the same places. `api.logger` works everywhere.",
        "",
        "A predicate is the function that you pass to `wait_condition`, and an `update_state` closure the one that you pass to",
        "`update_state`. A transition is a dynamic transition of a graph.",
        "",
        "A sync handler is one that returns its value itself, and an async handler the function in `Async`. A sync handler that is a",
        "plain `def` cannot await anything; written as `async def` it can, and messages wait until it is done.",
        "",
        "| primitive | use | " + " | ".join(places) + " |",
        "|---|---|" + "---|" * len(places),
    ]
    for row in (ACTIVITY, *PRIMITIVES):
        cells = ["yes" if row.is_allowed(place) else "no" for place in places]
        # A handler without `Async` may be a plain function, in which nothing can be awaited.
        if row.usage != AT_ONCE and row.is_allowed("sync handler"):
            cells[places.index("sync handler")] = "only in `async def`"
        lines.append(f"| `{row.name}` | {_USAGES[row.usage]} | " + " | ".join(cells) + " |")
    lines += ["", "The reasons:", ""]
    lines += [
        f"- `{row.name}` in {'an' if kind[0] in 'aeiou' else 'a'} {kind}: {reason}."
        for row in PRIMITIVES
        for kind, reason in row.refusals.items()
    ]
    lines += [
        "",
        "A query may call none of them. Only a handler of a phase may return `Async`: `run`, branches and async handlers may not.",
    ]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    from temporalex_django.management import outputs  # noqa: PLC0415 - Django is set up by now
    from temporalex_django.management.commands.temporalex import Command  # noqa: PLC0415 - as above

    lines = [
        "# Commands",
        "",
        _NOTE,
        "All commands have the form `manage.py temporalex SUBCOMMAND`. `RUN` is a business id, which selects its newest run, or a run id.",
        "Quote ids and JSON for the shell. Write arguments that begin with a dash after `--`.",
        "",
        "Commands print tables that are as wide as the terminal; without a terminal, each row is one line. The tables and the progress bars",
        "need the extra `rich` (`pip install 'temporalex-django[rich]'`). Without it, each row is one line of any length, and progress is a",
        "number. With `--json`, commands print JSON:",
        "`list`, `history`, `export`, `enqueued`, `tasks list` and `worker` print one line for each run, event, file, task or occurrence, however",
        "many there are, in constant memory; the other commands print one document.",
        "",
        "At a terminal, long commands (`bulk --wait`, `migrate`, `replay`, `export`, `doctor --deploy`) show their progress on standard",
        "error, and operations that cannot be undone ask for confirmation; `--yes` skips the prompt. If a command fails, it prints one",
        "sentence and the next step to standard error, without a traceback (`--traceback` shows it), and ends with an exit status:",
        "",
        "| exit status | meaning |",
        "|---|---|",
        *(f"| {status} | {text} |" for status, text in outputs.MEANINGS.items()),
        "",
        "Without `--as-user`, commands have no restrictions, and the audit log records the account of the operating system. With `--as-user NAME`,",
        "they have the permissions of that user, and find only the runs that exist for them. You can write `--settings`, `--pythonpath`,",
        "`--traceback`, `--verbosity` and the other general options after the subcommand as well.",
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
    """Return an argument as a reader writes it, or None for one that every command has."""
    if argparse.SUPPRESS in (action.help, action.dest) or action.dest == "help":
        return None
    if isinstance(action, argparse._SubParsersAction):
        return str(action.metavar)
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return {"*": f"[{value} …]", "?": f"[{value}]"}.get(str(action.nargs), str(value))
    return str(action.option_strings[-1]) + ("" if action.nargs == 0 else f" {value}")


def _nested(parser: Any) -> list[str]:
    """Return the lines below a subcommand that has subcommands."""
    lines = []
    for name, one in _subparsers(parser).items():
        lines.append(f"- `{name}`: {_escaped(one.description or '')}")
    return ["", *lines] if lines else []


def _escaped(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("%%", "%").replace("``", "`")


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        _NOTE,
        "The names are those of Prometheus. OpenTelemetry has the same metrics without the suffixes `_total` and `_seconds`; their unit is `s`.",
        "[Observability](../howto/observability.md#metrics) shows how to export them.",
        "",
        f"Labels that are names have at most {MAX_NAMES} values, or combinations of values, for each metric and process. Any further value",
        f"is recorded under the name `{OTHER}`, logged once, and counted in `{LABELS_LIMITED.name}`. The table shows the",
        "resulting maximum number of label sets. For each label set, a histogram has one series for each bucket and two more.",
        "No label contains a payload, an id or any other value of a user.",
        "",
        "## Values that each process records",
        "",
        "Each process records its own work, after the commit. A replay counts only as a rebuild.",
        "",
        *_metric_rows(is_fact=False),
        "",
        "## Metrics from the database",
        "",
        f"One worker of the project reads these values every {FACTS_SECONDS:g} s: the oldest one that exports metrics. The other processes do not",
        "export them.",
        "",
        *_metric_rows(is_fact=True),
        "",
        "## Buckets",
        "",
        "The list shows the upper bounds of the buckets of each histogram, in seconds.",
        "",
    ]
    lines += [
        f"- `{metric.name}`: {', '.join(f'{bucket:g}' for bucket in metric.buckets)}"
        for metric in METRICS
        if metric.buckets
    ]
    return "\n".join(lines) + "\n"


def _metric_rows(*, is_fact: bool) -> Iterator[str]:
    yield "| metric | kind | labels | label sets | meaning |"
    yield "|---|---|---|---|---|"
    for metric in METRICS:
        if metric.is_fact is is_fact:
            labels = [
                f"`{label.name}`{': ' if label.values else ''}{', '.join(label.values)}" for label in metric.labels
            ]
            cells = (f"`{metric.name}`", metric.kind.value, "; ".join(labels), str(metric.max_series), metric.help)
            yield f"| {' | '.join(cells)} |"


def events_page() -> str:
    lines = [
        "# History events",
        "",
        _NOTE,
        "The history of a run is the list of its events. `handle.history()`, `temporalex history RUN` and the admin show it. `number` counts",
        "from 1, `activation` is the number of the activation that wrote the event, and `attributes` are plain JSON. In them, `seq` is the",
        "number of the command to which the event belongs. Each activation begins with `ActivationStarted`; the delivered events follow, and",
        "then those of the code.",
        "",
        "| kind | written | meaning |",
        "|---|---|---|",
    ]
    for kind in KINDS.values():
        written = "from outside" if kind.from_outside else "delivered" if kind.command is None else "by the code"
        lines.append(f"| `{kind.name}` | {written} | {kind.meaning} |")
    lines += ["", "| closing event | status of the run |", "|---|---|"]
    lines += [f"| `{kind}` | `{status}` |" for kind, status in CLOSING.items()]
    return "\n".join(lines) + "\n"


def checks_page() -> str:
    lines = [
        "# Checks",
        "",
        _NOTE,
        "`manage.py check` reports these messages. `…` stands for an inserted name or value. To silence a check, set",
        "`SILENCED_SYSTEM_CHECKS = [id]`.",
        "",
        "| id | message | hint |",
        "|---|---|---|",
    ]
    found = set()
    for _, tree in _sources():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            given = {one.arg: _text(one.value) for one in call.keywords}
            if (given.get("id") or "").startswith("temporalex_django."):
                text = _text(call.args[0]) if call.args else None
                found.add((str(given["id"]), text or "… (one message for each error)", given.get("hint") or "–"))
    lines += [f"| `{name}` | {_escaped(text)} | {_escaped(hint)} |" for name, text, hint in sorted(found)]
    return "\n".join(lines) + "\n"


def messages_page() -> str:
    lines = [
        "# Messages",
        "",
        _NOTE,
        "This page lists error messages by class, with the cause and the next step of each. `…` stands for an inserted name or value:",
        "search for the words around it.",
    ]
    known = {
        name: cls
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, errors.TemporalexError)
    }
    said: dict[str, set[str]] = {name: set() for name in known}
    for _, tree in _sources():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in known and (text := _text(call.args[0])) is not None and text.strip("… "):
                said[name].add(text)
    for name in sorted(name for name in known if said[name]):
        cls = known[name]
        cause = " ".join((inspect.getdoc(cls) or "").split("\n\n", 1)[0].split()).replace("``", "`")
        lines += ["", f"## {name}", "", f"`{cls.code}`. {cause}", "", f"*Next step*: {cls.next_step}", ""]
        lines += [f"- {_literal(text)}" for text in sorted(said[name])]
    told = {section: set[str]() for section in (*_SECTIONS, _OTHERS, _LOG)}
    for path, tree in _sources():
        place = path.relative_to(PACKAGE).as_posix()
        for section, text in _told(place, tree):
            told[section].add(text)
    listed = set().union(*said.values())
    abouts = {name: (title, about) for name, (title, about, _) in _SECTIONS.items()}
    for section, (title, about) in {**abouts, _OTHERS: _ABOUT_OTHERS, _LOG: _ABOUT_LOG}.items():
        lines += ["", f"## {title}", "", about, ""]
        lines += [f"- {_literal(text)}" for text in sorted(told[section] - listed)]
    return "\n".join(lines) + "\n"


#: Texts that are not messages of errors: title, cause and remedy, and the modules that have them.
_SECTIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "definitions": (
        "Wrong definitions",
        (
            "A `WorkflowDefinitionError` lists all errors of a class, and `manage.py check` reports them as `E008`. The class is not registered. "
            "*Next step*: correct what the sentence names. Meanwhile, workers with the old code continue."
        ),
        (
            "authoring/definition.py",
            "authoring/versions.py",
            "graph/definition.py",
            "graph/workflow.py",
            "graph/progress.py",
        ),
    ),
    "runs": (
        "States of a run",
        (
            "Sentences about a run, on its page, in `describe()`, REST (`summary`), `temporalex describe` and `temporalex doctor`. [Sentences](sentences.md) "
            "explains each state. *Next step*: the one that the sentence or `doctor` names."
        ),
        ("present/",),
    ),
    "operators": (
        "Refused operations",
        (
            "The reason why a button is disabled or an operation on a run is refused: the text of "
            "`ActionNotPossible`, or of a form. Nothing was done. *Next step*: check the run again, because "
            "another person or the run itself was faster."
        ),
        ("operations/", "core/human_tasks.py", "engine/operator_overrides.py"),
    ),
    "faces": (
        "Pages and REST",
        (
            "Messages of the admin, of the pages for people who decide, and of HTTP responses with status 400 (`invalid`, with the name of the field). "
            "*Next step*: correct the field, or ask for the permission that the message names."
        ),
        ("admin/", "forms/", "pages/", "rest/"),
    ),
    "commands": (
        "Commands",
        "Messages that `manage.py temporalex` prints to standard error, with an [exit status](commands.md). *Next step*: the one that the message names.",
        ("management/",),
    ),
}
_OTHERS, _LOG = "others", "log"
_ABOUT_OTHERS = (
    "Exceptions of Python and Django",
    (
        "`TypeError`, `ValueError` and similar exceptions report an argument that is not valid. Nothing was done. *Next step*: correct the call "
        "that the traceback shows."
    ),
)
_ABOUT_LOG = (
    "In the log",
    (
        "Messages of the loggers `temporalex_django.*`. *Next step*: look at the run, worker or file that the message names; "
        "`manage.py temporalex doctor` reports what is wrong now."
    ),
)
_LEVELS = frozenset({"info", "warning", "error", "exception", "critical"})
_TRANSLATED = frozenset({"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext"})
_FEWEST_WORDS = 5


def _told(place: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the sentences of a module that are not messages of errors, each with its section."""
    section = next((name for name, (*_, places) in _SECTIONS.items() if place.startswith(places)), None)
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        where = section
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "logger"), attr=level), args=[first, *_]) if (
                level in _LEVELS
            ):
                found, where = [first], _LOG
            case ast.Call(func=ast.Name(id=name), args=texts) if name in _TRANSLATED:
                found = texts[: 2 if name == "ngettext" else 1]
            case ast.Raise(exc=ast.Call(args=texts)):
                found, where = texts, section if section in ("definitions", "commands") else _OTHERS
            case ast.Return(value=ast.expr() as value) if section in ("runs", "operators"):
                found = [value]
            case ast.Yield(value=ast.expr() as value) if section == "definitions":
                found = [value]
            case ast.Call(func=ast.Attribute(attr="append") | ast.Name(id="ValueError"), args=[first]) if (
                section == "definitions"
            ):
                found = [first]
            case ast.AugAssign(value=ast.List(elts=texts) | ast.ListComp(elt=ast.expr() as texts)) if (
                section == "definitions"
            ):
                found = texts if isinstance(texts, list) else [texts]
        for one in found:
            text = re.sub(r"%\(\w+\)[sd]|%[sdr.\dg]*[sdrg]", "…", _text(one) or "")
            if where is None or text.startswith("select "):  # SQL that a function returns is no message
                continue
            if len(text.replace("…", "").split()) >= _FEWEST_WORDS:
                yield where, text


def _sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def _text(node: ast.expr) -> str | None:
    """Return a text of the source, with ``…`` for each inserted value, or None if it is made elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "…" if isinstance(part, ast.Constant) else "…" for part in parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return f"{_text(left) or '…'}{_text(right) or '…'}"
    return None


def _literal(text: str) -> str:
    """Return a text as inline code of Markdown."""
    text = re.sub("…+", "…", " ".join(text.split()))
    return f"`` {text} ``" if "`" in text else f"`{text}`"


PAGES = {
    "checks.md": checks_page,
    "events.md": events_page,
    "messages.md": messages_page,
    "commands.md": commands_page,
    "places.md": places_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
}

if __name__ == "__main__":
    sys.path.insert(0, str(REFERENCE.parent.parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
