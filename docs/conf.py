"""Sphinx: ``make docs``. Every warning is an error there, and so is a public name that no page documents."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import django
from django.dispatch import Signal
from docutils import nodes
from docutils.utils import new_document
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.text import TextBuilder
from sphinx.util import logging

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django.setup()

project = "temporalex_django"
author = "The temporalex_django team"
release = importlib.import_module("temporalex_django").__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
html_theme = "furo"
html_title = project
html_copy_source = False  # copy_pages puts them beside the HTML
html_extra_path = ["llms.txt"]
html_show_copyright = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "html_image"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

nitpicky = True
suppress_warnings = ["ref.python"]  # a graph's Instance and the table's: a link goes to one of them
#: What is not ours, and type variables.
nitpick_ignore_regex = [
    ("py:class", r"(datetime|timedelta)"),
    ("py:.*", r"(collections|datetime|uuid|django|typing|contextlib|logging|enum)\..*"),
    ("py:.*", r"([\w.]+\.)?(T\d?|R|A|P|C|\w+_co)"),
    # Overloads are shown as they are written: names that are not looked up, and halves of what has a comma.
    (
        "py:class",
        r"(Person|Startable|StepRef|PayloadCodec|Environment|RunRow|UUID|dict\[str|Mapping\[str|tuple\[str|tuple\[~typing\.Any)",
    ),
    ("py:class", r"temporalex_django\.(testing\.environment_base\.EnvironmentBase|authoring\.queries\.QueryDecorator)"),
    ("py:class", r"(OnConflict|OnClosed|StartOutcome|\w+Options|Handler|UpdateFunction|_Decorator|tuple\[Any)"),
    # Types of Django under the names of their users; types that a step and a queue declare.
    ("py:class", r"(Task|TaskContext|TaskResult|Validator|DeclaredEvent|temporalex_django\.core\.limits\.Limits)"),
    # Names of types that say what they are: a handler, what decorates, what ``run`` promises, a route of a graph.
    ("py:.*", r"temporalex_django\.(core\.messages\.phase\.Handler|graph\.definition\.(Target|Clause))"),
    (
        "py:.*",
        r"temporalex_django\.authoring\.(activity\.(_Decorator|\w+Options)|start_api\.(TypedWorkflow|QueryDecorator|Startable))",
    ),
    ("py:class", r"temporalex_django\.engine\.memory\.tables\.RunRow"),
    ("py:.*", r"temporalex_django\.authoring\.schedules\.schedule\.(_Arguments|_Holidays)"),
]

#: What users import. Of modules without ``__all__`` every name that they define and that has no underscore is public.
PUBLIC = (
    "temporalex_django",
    "temporalex_django.testing",
    "temporalex_django.graph",
    "temporalex_django.graph.engine",
    "temporalex_django.graph.connectors",
    "temporalex_django.errors",
    "temporalex_django.models",
    "temporalex_django.signals",
    "temporalex_django.api",
    "temporalex_django.conf",
    "temporalex_django.contrib.logs",
    "temporalex_django.contrib.telemetry",
    "temporalex_django.interceptors",
    "temporalex_django.workers.q2",
    "temporalex_django.tasks",
)


def names(module: ModuleType) -> list[str]:
    """Return the public names of a module.

    ``__all__``, else the functions, classes and signals that it defines and that have no underscore.
    """
    defined = (
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Signal) or getattr(value, "__module__", "") == module.__name__)
        and (isinstance(value, Signal) or inspect.isclass(value) or inspect.isroutine(value))
    )
    return list(getattr(module, "__all__", defined))


def public() -> Iterator[tuple[str, Any]]:
    """The dotted name and the value of everything public."""
    for path in PUBLIC:
        module = importlib.import_module(path)
        for name in names(module):
            value = getattr(module, name)
            if not isinstance(value, ModuleType):
                yield f"{path}.{name}", value


def without_docstring(name: str, value: Any) -> Iterator[str]:
    """Yield the value and its public methods and properties that have no docstring. An inherited docstring counts."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return  # a value: its page shows the comment above it
    if not inspect.getdoc(value):
        yield name
    if not isinstance(value, type):
        return
    for part, member in inspect.getmembers_static(value):
        code = next((getattr(member, kind) for kind in ("__func__", "fget", "func") if hasattr(member, kind)), member)
        if part.startswith("_") or not inspect.isfunction(code) or not code.__module__.startswith("temporalex_django"):
            continue
        if not any(vars(base)[part].__doc__ for base in inspect.getmro(value) if part in vars(base)):
            yield f"{code.__module__}.{code.__qualname__}"


def undocumented(shown: set[str]) -> list[str]:
    """Return the findings: public names without a docstring, and those that no page shows."""
    found = []
    there = {id(value) for name, value in public() if name in shown}  # under one of its names is enough
    for name, value in public():
        if name not in shown and id(value) not in there:
            found.append(f"{name} is public and on no page of the reference")
        found += [f"{bare} has no docstring" for bare in without_docstring(name, value)]
    return list(dict.fromkeys(found))


def check(app: Sphinx, *_: Any) -> None:
    """A warning for each finding; ``make docs`` makes errors of them."""
    for finding in undocumented({name for name, *_ in app.env.domains.python_domain.get_objects()}):
        logging.getLogger("temporalex").warning(finding)


#: A block of directives that Sphinx replaces by signatures and docstrings, and one directive of it.
BLOCK = re.compile(r"^```\{eval-rst\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^\.\. auto\w+:: ([\w.]+)$", re.MULTILINE)


def copy_pages(app: Sphinx, exception: Exception | None) -> None:
    """Write each page as Markdown beside its HTML, so that programs read it and follow its links.

    It is the source of the page, with the signatures and docstrings of the names that the page documents.
    """
    if exception is not None or app.builder.format != "html":
        return
    texts = TextBuilder(app, app.env)
    for name in app.env.found_docs:
        source = Path(app.env.doc2path(name))
        page = source.read_text(encoding="utf-8")
        if BLOCK.search(page):
            page = with_docstrings(page, app.env.get_and_resolve_doctree(name, app.builder), texts)
        (app.outdir / f"{name}{source.suffix}").write_text(page, encoding="utf-8")


def with_docstrings(page: str, tree: nodes.document, texts: TextBuilder) -> str:
    """Return the source of a page with texts in place of its directives; ``tree`` is what Sphinx made of it."""
    documented = {
        signature["ids"][0]: entry
        for entry in tree.findall(addnodes.desc)
        if not isinstance(entry.parent, addnodes.desc_content)
        for signature in entry.findall(addnodes.desc_signature)
        if signature.parent is entry and signature["ids"]
    }

    def text_of(match: re.Match[str]) -> str:
        entries = [
            entry
            for path in DIRECTIVE.findall(match[1])
            for name, entry in documented.items()
            if name == path or name.startswith(f"{path}.")
        ]
        lines = [plain_text(entry, texts) for entry in dict.fromkeys(entries)]
        return "```text\n" + "\n\n".join(lines) + "\n```"

    return BLOCK.sub(text_of, page)


def plain_text(entry: addnodes.desc, texts: TextBuilder) -> str:
    """Return the signature and the docstring of a name as plain text."""
    document = new_document(entry.source or "")
    document += entry.deepcopy()
    translator = texts.create_translator(document, texts)
    document.walkabout(translator)
    return str(translator.body).strip()


def setup(app: Sphinx) -> None:
    """Connect the check and the copies to Sphinx."""
    app.connect("env-check-consistency", check)
    app.connect("build-finished", copy_pages)
