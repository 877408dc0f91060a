"""The system checks of the package, with the tag ``temporalex``.

A mistake in the settings of the package is an Error. A set-up of the project on which workflows cannot rely is a
Warning.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import FrameType, ModuleType
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - the name Django gives it
from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor
from django.urls import get_resolver
from django.urls.resolvers import RoutePattern
from django.utils.connection import ConnectionDoesNotExist

from temporalex_django import conf
from temporalex_django.authoring import activity as activities
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.activity import is_nameless
from temporalex_django.authoring.declared_messages import handler_problems
from temporalex_django.authoring.lint.checks import (
    duplicate_names,
    findings_in,
    named_activities,
    roles_in,
    unresolved_annotations,
)
from temporalex_django.core.determinism.rules import is_project_file
from temporalex_django.core.failures import source_line
from temporalex_django.core.names import TABLES, TEMPORAL
from temporalex_django.db.dialects.base import check_connection
from temporalex_django.errors import ScheduleInvalid, WorkflowDefinitionError
from temporalex_django.workers.app_modules import unloaded_definitions

TAG = "temporalex"
#: Modules that could not be loaded, each with its error; the app fills the list when Django starts.
definition_errors: list[tuple[str, WorkflowDefinitionError | ScheduleInvalid]] = []
_BROKER = "temporalex_django.workers.q2.Broker"
_BROKER_PACKAGE = "temporalex_django.workers.q2"


@register(TAG)
def check_settings(*_: Any, **__: Any) -> list[CheckMessage]:
    """Check ``TEMPORALEX`` for unknown names, wrong types, and a codec or a database that does not exist."""
    messages: list[CheckMessage] = [Error(problem, id="temporalex_django.E001") for problem in conf.problems()]
    alias = conf.read()[0].DATABASE
    if alias not in settings.DATABASES:
        database_names = ", ".join(sorted(settings.DATABASES))
        messages.append(
            Error(
                f"TEMPORALEX['DATABASE'] is {alias!r}, which is not in DATABASES (available: {database_names}).",
                id="temporalex_django.E002",
            )
        )
    return messages


@register(TAG)
def check_time_zones(*_: Any, **__: Any) -> list[CheckMessage]:
    """Warn that workers, commands and starts are refused in a project whose times have no time zone."""
    if settings.USE_TZ:
        return []
    return [
        Warning(
            f"{conf.WITHOUT_TIME_ZONES} Workers, commands and starts raise NotConfigured.",
            hint="Set USE_TZ = True. If other code of the project relies on naive times, let it use "
            "django.utils.timezone.make_naive.",
            id="temporalex_django.W015",
        )
    ]


@register(TAG)
def check_cluster_sdk(*_: Any, **__: Any) -> list[CheckMessage]:
    """Check that runs that live on a Temporal cluster can be reached: the SDK is installed."""
    classes = [cls.name for cls in workflows.concrete_classes() if cls.backend == TEMPORAL]
    if find_spec("temporalio") is not None or not (classes or conf.uses_cluster(conf.read()[0])):
        return []
    routed = f"the class {classes[0]} is" if classes else "TEMPORALEX allows runs"
    return [
        Error(
            f"{routed} on a Temporal cluster, but the package temporalio is not installed.",
            hint="Run: pip install 'temporalex-django[temporal]'",
            id="temporalex_django.E011",
        )
    ]


@register(TAG)
def check_cluster_setting(*_: Any, **__: Any) -> list[CheckMessage]:
    """Check that the settings name the Temporal cluster on which classes live: otherwise no worker polls it."""
    if conf.uses_cluster(conf.read()[0]):
        return []
    return [
        Error(
            f"{cls.name} has backend = {TEMPORAL!r}, and TEMPORALEX['CLUSTER'] is empty.",
            hint="Set TEMPORALEX['CLUSTER'], for example to {'ADDRESS': 'localhost:7233'}.",
            id="temporalex_django.E013",
        )
        for cls in workflows.concrete_classes()
        if cls.backend == TEMPORAL
    ]


def shared_transaction_problems(backend: str) -> Iterator[str]:
    """Yield a sentence for each activity of a class on this backend that must share a transaction with its run."""
    default = conf.read()[0].BACKEND
    for cls in workflows.concrete_classes():
        if (cls.backend or default) != backend:
            continue
        for name, activity in sorted(named_activities(cls).items()):
            if activity.options_set.shared_transaction:
                yield (
                    f"{cls.name} calls {name}, which needs the next step of its run in the same transaction "
                    "(shared_transaction=True)"
                )


@register(TAG)
def check_shared_transactions(*_: Any, **__: Any) -> list[CheckMessage]:
    """Check that no class on a Temporal cluster needs a transaction with its run; warn about those that cannot move."""
    messages: list[CheckMessage] = [
        Error(
            f"{problem}, but the class runs on a Temporal cluster.",
            hint="Set backend = 'tables' on the class, or use an activity that can commit before that step.",
            id="temporalex_django.E012",
        )
        for problem in shared_transaction_problems(TEMPORAL)
    ]
    if not conf.uses_cluster(conf.read()[0]):
        return messages
    return messages + [
        Warning(
            f"{problem}: the class cannot move to the Temporal cluster.",
            hint="Leave it on the tables, or use an activity that can commit before that step.",
            id="temporalex_django.W014",
        )
        for problem in shared_transaction_problems(TABLES)
    ]


@register(TAG)
def check_database(*_: Any, **__: Any) -> list[CheckMessage]:
    """Check that the database of the runs is set up so that workflows can rely on it."""
    try:
        connection = connections[conf.read()[0].DATABASE]
    except ConnectionDoesNotExist:
        return []
    return list(check_connection(connection))


@register(Tags.database)
def check_migrations(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Warn about migrations of this app that are not applied.

    A Warning, because ``migrate`` itself runs the checks before it can apply them. The check is silent while
    ``migrate`` runs. Like every check that queries a database, it runs only with ``check --database`` (in Django 6.1,
    with every command that runs checks).
    """
    alias = conf.read()[0].DATABASE
    if not databases or alias not in databases or alias not in settings.DATABASES or _is_migrating():
        return []
    missing = unapplied_migrations(alias)
    if not missing:
        return []
    return [
        Warning(
            f"The workflow tables on {alias!r} are not up to date (not applied: {', '.join(missing)}).",
            hint="Run: manage.py migrate temporalex_django" + ("" if alias == "default" else f" --database {alias}"),
            id="temporalex_django.W005",
        )
    ]


@register(Tags.database)
def check_schedules(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Warn about schedules whose rows differ from what code declares.

    It queries the database, so it runs only with ``check --database``, and not while ``migrate`` runs.
    """
    alias = conf.read()[0].DATABASE
    if not databases or alias not in databases or alias not in settings.DATABASES or _is_migrating():
        return []
    if unapplied_migrations(alias):
        return []
    from temporalex_django.operations.schedules.sync import schedule_differences  # noqa: PLC0415 - needs the models

    return [Warning(difference.text, id="temporalex_django.W013") for difference in schedule_differences(alias)]


@register(Tags.database)
def check_deciders(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Warn about groups and permissions that approvals in workflow code name, and that do not exist.

    It queries the database, so it runs only with ``check --database``, and not while ``migrate`` runs.
    """
    alias = conf.read()[0].DATABASE
    if not databases or alias not in databases or alias not in settings.DATABASES or _is_migrating():
        return []
    from temporalex_django.db.human_tasks import undefined_principals  # noqa: PLC0415 - needs the models

    roles = [(path, line, role) for path in _workflow_files() for line, role in roles_in(path)]
    undefined = undefined_principals({role for _path, _line, role in roles}, alias=alias)
    return [
        Warning(
            f"{path}:{line}: the approval asks {undefined[role]}, which does not exist.",
            hint="Create it, or correct the name.",
            id="temporalex_django.W018",
        )
        for path, line, role in roles
        if role in undefined
    ]


def _is_migrating() -> bool:
    """Return True if ``migrate`` runs these checks, from the command line or by ``call_command``."""
    # A check does not know which command runs it, and sys.argv does not show call_command(): look up the stack.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the one way to the caller
    while frame is not None:
        if type(frame.f_locals.get("self")).__module__ == "django.core.management.commands.migrate":
            return True
        frame = frame.f_back
    return False


def unapplied_migrations(alias: str) -> list[str]:
    """Return the names of the migrations of this app that are not applied on the database ``alias``.

    The list is empty if the database cannot be queried.
    """
    try:
        executor = MigrationExecutor(connections[alias])
        targets = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "temporalex_django"]
        return [
            migration.name
            for migration, _ in executor.migration_plan(targets)
            if migration.app_label == "temporalex_django"
        ]
    except DatabaseError:
        return []


@register(TAG)
def check_cluster(*_: Any, **__: Any) -> list[CheckMessage]:
    """Check the setting ``Q_CLUSTER`` when the project runs django-q2: its broker, its timeouts and its cache."""
    cluster = getattr(settings, "Q_CLUSTER", None)
    if not isinstance(cluster, dict):
        return []
    path = cluster.get("broker_class")
    if not path:
        return [
            Warning(
                "django-q2 is set up without the broker of temporalex: this cluster does not advance workflows.",
                hint=f"Set Q_CLUSTER['broker_class'] = {_BROKER!r}, or run manage.py temporalex worker alongside it.",
                id="temporalex_django.W004",
            )
        ]
    messages = list(_broker_problems(str(path)))
    timeout, retry = cluster.get("timeout"), cluster.get("retry", 60)
    if timeout is not None and retry <= timeout:
        messages.append(
            Warning(
                f"Q_CLUSTER['retry'] ({retry} s) is not greater than its timeout ({timeout} s): "
                "django-q2 starts tasks again while they still run.",
                hint="Make retry larger than timeout.",
                id="temporalex_django.W010",
            )
        )
    cache = (settings.CACHES.get(cluster.get("cache", "default")) or {}).get("BACKEND", "")
    if cache.endswith("LocMemCache"):
        messages.append(
            Warning(
                "django-q2 keeps the state of its cluster in Django's cache, which is LocMem: "
                "other processes do not see it.",
                hint="Use a cache that processes share. "
                "The console of workflows reads its own table and is not affected.",
                id="temporalex_django.W006",
            )
        )
    return messages


def _broker_problems(path: str) -> Iterator[CheckMessage]:
    """Yield an Error for a bad broker of this package, else at most a Warning: its cluster still works."""
    module, _, name = path.rpartition(".")
    is_own_broker = path.startswith("temporalex_django.")
    if is_own_broker and not apps.is_installed("django_q"):
        yield Error(
            f"Q_CLUSTER['broker_class'] is {path!r}, but django_q is not in INSTALLED_APPS: "
            "there is no qcluster command.",
            hint="Add 'django_q' to INSTALLED_APPS and migrate, "
            "or remove Q_CLUSTER and run manage.py temporalex worker.",
            id="temporalex_django.E010",
        )
        return
    # Import a broker of the project too: a subclass of WorkerHost, wherever it is defined, advances workflows.
    try:
        cls = getattr(import_module(module), name)
    except Exception as exc:  # noqa: BLE001 - whatever importing it raises, the cluster would not start
        if is_own_broker:
            yield Error(
                f"Q_CLUSTER['broker_class'] is {path!r}, which cannot be imported: {exc}",
                hint=f"Set it to {_BROKER!r}.",
                id="temporalex_django.E006",
            )
        return
    from temporalex_django.workers.q2.broker import WorkerHost  # noqa: PLC0415 - it imports django-q2

    if isinstance(cls, type) and issubclass(cls, WorkerHost):
        return
    if is_own_broker:
        yield Error(
            f"Q_CLUSTER['broker_class'] is {path!r}, which is not a broker.",
            hint=f"Set it to {_BROKER!r}.",
            id="temporalex_django.E006",
        )
    else:
        yield Warning(
            f"Q_CLUSTER['broker_class'] is {path!r}, which does not advance workflows.",
            hint=(
                f"Set it to a subclass: class Broker({_BROKER_PACKAGE}.WorkerHost, {name}): pass. Or run manage.py "
                "temporalex worker alongside the cluster."
            ),
            id="temporalex_django.W004",
        )


@register(TAG)
def check_names(*_: Any, **__: Any) -> list[CheckMessage]:
    """Check the modules of installed apps for two definitions that share a name: the later would replace the earlier.

    A definition may be imported from elsewhere. Modules of tests may define a name again.
    """
    return [
        Error(
            f"The {duplicate.kind} {duplicate.name!r} is defined twice: in {' and in '.join(duplicate.places)}.",
            hint="Give one of them a different name=.",
            id="temporalex_django.E007",
        )
        for duplicate in duplicate_names(_app_modules())
    ]


def _app_modules() -> list[ModuleType]:
    """Return the loaded modules of installed apps, except those of tests, sorted by name."""
    installed = {app.name for app in apps.get_app_configs()}
    modules = []
    for name, module in sorted(sys.modules.items()):
        parts = name.split(".")
        app = next((i for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in installed), None)
        if app is None or not isinstance(module, ModuleType):
            continue
        if not any(part in ("tests", "test", "conftest") or part.startswith("test_") for part in parts[app:]):
            modules.append(module)
    return modules


@register(TAG)
def check_definitions(*_: Any, **__: Any) -> list[CheckMessage]:
    """Report definitions that were refused when their module was imported, and graphs that are invalid now."""
    from temporalex_django.authoring import workflow  # noqa: PLC0415 - filled by autodiscovery
    from temporalex_django.graph import definition as validation  # noqa: PLC0415 - only for this check
    from temporalex_django.graph.workflow import GraphWorkflow  # noqa: PLC0415 - as above

    messages: list[CheckMessage] = [
        Error(f"{module} is not loaded: {exc.message}", hint=exc.next_step, id="temporalex_django.E008")
        for module, exc in definition_errors
    ]
    # A graph is validated when its class is defined; its steps can be changed after that.
    for cls in workflow.concrete_classes():
        if issubclass(cls, GraphWorkflow):
            problems = validation.build(cls)[1]
            messages += [Error(f"workflow {cls.__qualname__}: {p}", id="temporalex_django.E008") for p in problems]
    return messages


@register(TAG)
def check_queues(*_: Any, **__: Any) -> list[CheckMessage]:
    """Warn about limits of queues that no code of the project names: a limit with a misspelt name has no effect."""
    from temporalex_django.workers.admission import unknown_queues  # noqa: PLC0415 - filled by autodiscovery

    return [
        Warning(
            f"TEMPORALEX['QUEUES'] has limits for the queue {name!r}, "
            "which no workflow, activity or task of this project names.",
            hint=(f"Did you mean {near!r}? " if near else "")
            + "If only calls name it, with options(queue=...), silence this check.",
            id="temporalex_django.W011",
        )
        for name, near in unknown_queues(sorted(conf.read()[0].QUEUES)).items()
    ]


@register(TAG)
def check_stored_fields(*_: Any, **__: Any) -> list[CheckMessage]:
    """Warn about published state and search attributes that are plain text beside a codec, which may encrypt."""
    from temporalex_django.authoring import workflow  # noqa: PLC0415 - filled by autodiscovery

    path = conf.read()[0].PAYLOAD_CODEC
    # The default codec encrypts nothing, so nobody relies on it for secrecy.
    if path == conf.Settings().PAYLOAD_CODEC:
        return []
    messages: list[CheckMessage] = [
        Warning(
            f"{cls.name} stores {', '.join(sorted(cls.stored))} of its published state as plain text, "
            f"although you use the codec {path}.",
            hint=(
                "If the codec encrypts, remove fields from `stored` that nobody may read in the database; otherwise, "
                "silence this check. Titles and comments of human tasks, waiting_for, reasons of pauses, of the "
                "audit log and of bulk jobs, and Django's LogEntry are plain text as well."
            ),
            id="temporalex_django.W008",
        )
        for cls in workflow.concrete_classes()
        if cls.stored
    ]
    messages += [
        Warning(
            f"{cls.name} stores its search attributes {', '.join(sorted(cls.search_attributes))} as plain text, "
            f"although you use the codec {path}.",
            hint="If the codec encrypts, declare no attribute that nobody may read in the database; "
            "otherwise, silence this check. "
            "Titles and comments of human tasks, waiting_for, reasons of pauses, of the audit log and of bulk jobs, "
            "and Django's LogEntry are plain text as well.",
            id="temporalex_django.W009",
        )
        for cls in workflow.concrete_classes()
        if cls.search_attributes
    ]
    return messages


@register(TAG)
def check_workflow_code(*_: Any, **__: Any) -> list[CheckMessage]:
    """Warn about workflow code that calls what the guard refuses, forgets an await, or depends on the process.

    The check reads the source and runs none of it, so it can be wrong: it never reports an Error.
    """
    return [
        Warning(
            f"{path}:{finding.line}: {finding.call} in workflow code ({finding.function}): {finding.problem}.",
            hint=f"{finding.advice[:1].upper()}{finding.advice[1:]}.",
            id="temporalex_django.W007",
        )
        for path, classes in _workflow_files().items()
        for finding in findings_in(path, classes)
        if not finding.seeded
    ]


@register(TAG)
def check_calls(*_: Any, **__: Any) -> list[CheckMessage]:
    """Warn about handlers that their phase would refuse, annotations that name nothing, and nameless activities."""
    handler_warnings: list[CheckMessage] = [
        Warning(
            f"{problem} ({cls.name}).",
            hint="Correct it: the phase raises WorkflowDefinitionError when a run opens it.",
            id="temporalex_django.W016",
        )
        for cls in workflows.concrete_classes()
        if _is_in_app(cls.__module__) and is_project_file(cls.definition_place.path)
        for problem in handler_problems(cls)
    ]
    annotation_warnings = [
        Warning(
            f"{place}: the annotation {annotation!r} of {name} names nothing when the process runs.",
            hint="Import it outside of TYPE_CHECKING, or define it in the module. Until then, plain data arrive.",
            id="temporalex_django.W016",
        )
        for place, name, annotation in unresolved_annotations(_is_in_app)
    ]
    activity_warnings = [
        Warning(
            f"The activity {activity.name} ({source_line(activity.__wrapped__)}) is a lambda without a name.",
            hint="Write a `def`, or give it a name: activity(name=...). Its calls raise WorkflowDefinitionError.",
            id="temporalex_django.W016",
        )
        for activity in activities.registry.values()
        if is_nameless(activity) and _is_in_app(activity.__wrapped__.__module__)
    ]
    return [*handler_warnings, *annotation_warnings, *activity_warnings]


@register(TAG)
def check_unloaded_modules(*_: Any, **__: Any) -> list[CheckMessage]:
    """Warn about workflows and activities in modules of apps that no process loads."""
    return [
        Warning(
            f"{definition.path}:{definition.line} defines {definition.name}, but nothing loads {definition.module}.",
            hint=f"Move it to {definition.app}.{definition.home}, or import it there.",
            id="temporalex_django.W017",
        )
        for definition in unloaded_definitions()
        # What could not be loaded because of an error is an Error already, with its cause.
        if not any(f"{module}.".startswith(f"{definition.app}.") for module, _error in definition_errors)
    ]


@register(TAG)
def check_hash_seed(*_: Any, **__: Any) -> list[CheckMessage]:
    """Warn about workflow code that iterates sets, in a process that has a random hash seed.

    ``temporalex worker`` sets the seed of the project by itself.
    """
    from temporalex_django.workers import app_modules  # noqa: PLC0415 - it needs the settings

    # With one seed in every process, sets iterate in one order, and a replay sees the order of the first execution.
    if app_modules.is_set():
        return []
    return [
        Warning(
            f"{path}:{finding.line}: {finding.call} in workflow code ({finding.function}): "
            "its order differs from one process to the next.",
            hint="Sort it. Or start web processes that answer updates, and clusters of django-q2, "
            f"with {app_modules.VARIABLE}={app_modules.project_seed()}, as temporalex worker does by itself.",
            id="temporalex_django.W012",
        )
        for path, classes in _workflow_files().items()
        for finding in findings_in(path, classes)
        if finding.seeded
    ]


@register(Tags.urls)
def check_routes(*_: Any, **__: Any) -> list[CheckMessage]:
    """Report view sets with routes of runs whose router does not accept regular expressions, which they need."""
    # Without the module loaded, no view of the project uses the mixin; importing it would need REST framework.
    mixin = getattr(sys.modules.get("temporalex_django.rest.mixin"), "WorkflowViewMixin", None)
    if mixin is None or not getattr(settings, "ROOT_URLCONF", None):
        return []
    view_names = {
        view.__qualname__
        for route, view in _view_routes(get_resolver().url_patterns)
        if isinstance(route, RoutePattern) and "(?P<message>" in str(route) and issubclass(view, mixin)
    }
    return [
        Error(
            f"The routes of signals and updates of {name} do not work: its router does not accept regular expressions.",
            hint="Register it with a router that accepts them: DefaultRouter() without use_regex_path=False.",
            id="temporalex_django.E009",
        )
        for name in sorted(view_names)
    ]


def _view_routes(patterns: Iterable[Any]) -> Iterator[tuple[Any, type]]:
    """Yield ``(route, view class)`` for each route that leads to a view class."""
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _view_routes(pattern.url_patterns)
        elif isinstance(view := getattr(pattern.callback, "cls", None), type):
            yield pattern.pattern, view


def _is_in_app(module: str) -> bool:
    # The dot keeps the app "shop" from matching the module "shopping".
    return any(f"{module}.".startswith(f"{app.name}.") for app in apps.get_app_configs())


def _workflow_files() -> dict[str, set[str]]:
    """Return the files in which installed apps define workflows, each with its classes' names."""
    from temporalex_django.authoring import workflow  # noqa: PLC0415 - filled by autodiscovery

    modules: dict[str, set[str]] = {f"{app.name}.workflows": set() for app in apps.get_app_configs()}
    # A class may be defined outside `workflows`.
    for cls in workflow.concrete_classes():
        if _is_in_app(cls.__module__):
            modules.setdefault(cls.__module__, set()).add(cls.__name__)
    files: dict[str, set[str]] = {}
    for name in sorted(modules):
        path = getattr(sys.modules.get(name), "__file__", None)
        if path is not None and is_project_file(path):
            files.setdefault(path, set()).update(modules[name])
    return files
