"""The access policy: it decides which runs exist for a user, and what they may do and see.

Every look-up, list, count, page, command and operation asks it. ``TEMPORALEX["ACCESS_POLICY"]`` names a subclass of
``AccessPolicy``. The policy is not asked about code (``user`` None), which may do anything. An exception that the
policy raises goes to the caller; nothing is shown or done then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from django.db.models import Model, QuerySet

from temporalex_django import conf
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.redaction import UNREDACTED, Redactor, redacted_paths_of
from temporalex_django.authoring.versions import VersionedWorkflow
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.errors import ActionNotPermitted, NotConfigured, WorkflowNotFound
from temporalex_django.models import HumanTask, Instance, Schedule

T = TypeVar("T")
M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation that a user wants to perform, as the access policy is asked about it.

    ``action`` is its name: ``view``, ``view_payload``, ``start``, ``signal``, ``update``, ``query``, ``resume``,
    ``cancel`` and so on. ``permission`` is the Django permission that it requires. It is None for a message that code
    sends in the name of a user, because the handler says who may send that.

    ``run`` is the run that the operation is about. None means that the run is not known yet, and the question is
    whether the user may perform the operation on any run. ``workflow`` is the name of its class, and ``message`` the
    name of the signal, update, query or event, as far as they are known. ``activity`` is the name of the activity, None
    before it is looked up. ``edits`` is True if the user gives the activity another input.
    """

    action: str
    permission: str | None
    workflow: str | None = None
    message: str | None = None
    run: Instance | None = None
    activity: str | None = None
    edits: bool = False

    def of(self, run: Instance) -> Operation:
        """Return a copy of the operation that is about this run and its class."""
        return replace(self, run=run, workflow=run.workflow)


VIEW = Operation(action="view", permission=f"{APP}.view_instance")
VIEW_PAYLOAD = Operation(action="view_payload", permission=f"{APP}.view_payload")
EDIT = Operation(action="edit_activity_input", permission=f"{APP}.edit_activity_input", edits=True)


class AccessPolicy:
    """The access policy of a project.

    Subclass it, override the methods that should differ, and name the subclass in ``TEMPORALEX["ACCESS_POLICY"]``. One
    object per process serves all requests, so it must keep no state.
    """

    def narrow(self, user: Person, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        """Return those of ``runs`` that exist for this user, such as those of their tenant.

        For this user, it is as if no other run existed.
        """
        del user
        return runs

    def narrow_schedules(self, user: Person, schedules: QuerySet[Schedule]) -> QuerySet[Schedule]:
        """Return those of ``schedules`` that exist for this user.

        By default a user for whom ``narrow`` hides runs sees only the schedules that start runs in their name, since a
        schedule has no tenant of its own. Others see all.
        """
        if is_unfiltered(self.narrow(user, Instance.objects.all())):
            return schedules
        return schedules.filter(editor=getattr(user, "pk", None)) if getattr(user, "pk", None) else schedules.none()

    def narrow_tasks(self, user: Person, tasks: QuerySet[M]) -> QuerySet[M]:
        """Return those of ``tasks``, the background tasks, that exist for this user.

        ``tasks`` is a queryset of ``EnqueuedTask`` or of ``EndedTask``; both have ``enqueued_by``, the run whose
        activity enqueued the task. By default a user for whom ``narrow`` hides runs sees only the tasks that the other
        runs have enqueued, since a task has no tenant of its own. Others see all.
        """
        runs = self.narrow(user, Instance.objects.all())
        return tasks if is_unfiltered(runs) else tasks.filter(enqueued_by__in=runs.order_by().values("pk"))

    def permits(self, user: Person, permission: str) -> bool:
        """Return True if the user has a Django permission.

        ``permission`` is written ``app.codename``. It is a permission of a model, or one that the handler of a message
        asks for.
        """
        return authorization.has_permission(user, permission)

    def allows(self, user: Person, operation: Operation) -> bool:
        """Return True if the user may perform the operation.

        It is called twice: with ``operation.run`` None before a run is looked up, and with the run afterwards.
        """
        return operation.permission is None or self.permits(user, operation.permission)

    def startable(self, user: Person, workflow: type[Workflow]) -> bool:
        """Return True if the user may start runs of this class from REST, the admin and commands.

        By default this excludes internal classes and old versions.
        """
        del user
        dispatcher = cast("type[VersionedWorkflow] | None", workflow.dispatched_by)
        if dispatcher is not None and workflow.version != dispatcher.current:
            return not workflow.internal and dispatcher.resolve_version()[1] is workflow
        return not workflow.internal

    def permissions(self, user: Person) -> Collection[str]:
        """Return all permissions (``app.codename``) for which ``permits`` returns True.

        The inbox of a person uses them to find the human tasks that ask for one of these permissions.
        """
        get_permissions = getattr(user, "get_all_permissions", None)
        return get_permissions() if callable(get_permissions) else ()

    def stands_in_for(self, user: Person) -> Iterable[Person]:
        """Return the people for whom the user may also decide human tasks, such as colleagues on leave."""
        del user
        return ()

    def may_delegate(self, user: Person, task: HumanTask, to: Person) -> bool:
        """Return True if the user may delegate a human task to the user ``to``, who may decide it from then on.

        It is asked only about users who may decide the task themselves.
        """
        del task, to
        return self.permits(user, f"{APP}.delegate_humantask")

    def mask(self, user: Person, run: Instance, value: Any) -> Any:
        """Return ``value``, a payload of the run, as this user may see it.

        The fields that the class of the run redacts have been removed before.
        """
        del user, run
        return value


def policy() -> AccessPolicy:
    """Return the access policy that the settings name.

    Raises ``NotConfigured`` when it cannot be loaded.
    """
    return cast("AccessPolicy", conf.object_from_setting("ACCESS_POLICY"))


def runs_for(user: Person | None, *, alias: str) -> QuerySet[Instance] | None:
    """Return the runs that exist for a user, or None if there is no restriction.

    ``alias`` names the database. Raises ``NotConfigured`` when ``AccessPolicy.narrow`` returns anything but a queryset
    of runs.
    """
    if user is None:
        return None
    all_runs = Instance.objects.using(alias)
    runs = policy().narrow(user, all_runs)
    if not isinstance(runs, QuerySet) or runs.model is not Instance:
        raise NotConfigured(f"narrow() of the access policy must return a queryset of runs, not {type(runs).__name__}")
    # A policy that restricts nothing counts as no restriction, so queries get no subselect and keep their plans.
    return None if is_unfiltered(runs) else runs.using(alias)


def runs_or_all(runs: QuerySet[Instance] | None, *, alias: str) -> QuerySet[Instance]:
    """Return ``runs``, the result of ``runs_for``, or all runs of the database ``alias`` if it is None."""
    if runs is None:
        return Instance.objects.using(alias)
    return runs


def schedules_for(user: Person, *, alias: str) -> QuerySet[Schedule]:
    """Return the schedules of the database ``alias`` that exist for a user, ordered by name.

    Raises ``NotConfigured`` when ``AccessPolicy.narrow_schedules`` returns anything but a queryset of schedules.
    """
    schedules = policy().narrow_schedules(user, Schedule.objects.using(alias))
    if not isinstance(schedules, QuerySet) or schedules.model is not Schedule:
        raise NotConfigured(
            f"narrow_schedules() of the access policy must return a queryset of schedules, not {type(schedules).__name__}"
        )
    return schedules.using(alias)


def tasks_for(user: Person | None, model: type[M], *, alias: str) -> QuerySet[M]:
    """Return the background tasks of the database ``alias`` that exist for a user. For code (None), these are all.

    ``model`` is ``EnqueuedTask`` or ``EndedTask``. Raises ``NotConfigured`` when ``AccessPolicy.narrow_tasks`` returns
    anything but a queryset of that model.
    """
    all_tasks = model._default_manager.using(alias)  # noqa: SLF001 - Django documents it
    if user is None:
        return all_tasks.all()
    tasks = policy().narrow_tasks(user, all_tasks.all())
    if not isinstance(tasks, QuerySet) or tasks.model is not model:
        raise NotConfigured(
            f"narrow_tasks() of the access policy must return a queryset of {model.__name__}, not {type(tasks).__name__}"
        )
    return tasks.using(alias)


def is_unfiltered(runs: QuerySet[Any]) -> bool:
    """Return True if a queryset excludes no rows: it has no filter, slice, union or distinct fields."""
    query = runs.query
    return not (query.where or query.is_sliced or query.combinator or query.distinct_fields)


def require_access(user: Person | None, operation: Operation, *, alias: str, run: Instance | None = None) -> None:
    """Raise ``ActionNotPermitted`` unless the access policy allows the user the operation. None stands for code.

    With ``run``, the question is about that run, on the database ``alias``. Raises ``WorkflowNotFound`` for a run that
    does not exist for this user. The error says nothing else about the run.
    """
    if user is None:
        return
    # Ask without the run first: users who may do this to no run must not learn which runs exist.
    _require_allowed(user, operation)
    if run is None:
        return
    # A run outside of the restriction must look like one that was never started: not found, instead of not permitted.
    visible_runs = runs_for(user, alias=alias)
    if visible_runs is not None and not visible_runs.filter(pk=run.pk).exists():
        raise WorkflowNotFound("there is no such run")
    _require_allowed(user, operation.of(run))


def find_visible(find: Callable[[], T], run_of: Callable[[T], Instance], user: Person | None, *, alias: str) -> T:
    """Call ``find`` and return its result, if the user may look at the run that ``run_of(result)`` returns.

    ``find()`` has to search only among the runs that exist for the user. The policy is asked before anything is read
    and again about the run that was found. Raises ``ActionNotPermitted`` or ``WorkflowNotFound`` if the user may not
    look at the run.
    """
    require_access(user, VIEW, alias=alias)
    result = find()
    require_access(user, VIEW, alias=alias, run=run_of(result) if user is not None else None)
    return result


def redactor_for(user: Person | None, run: Instance) -> Redactor:
    """Return the redactor that decides which payloads of a run the user sees."""
    if user is None:
        return UNREDACTED
    access_policy = policy()
    return Redactor(
        may_see_payloads=access_policy.allows(user, VIEW_PAYLOAD.of(run)),
        redacted_paths=redacted_paths_of(run.workflow),
        mask=partial(access_policy.mask, user, run),
    )


def _require_allowed(user: Person, operation: Operation) -> None:
    """Raise ``ActionNotPermitted`` unless the access policy allows the operation."""
    if policy().allows(user, operation):
        return
    run_text = "runs" if operation.run is None else f"{operation.run.workflow} {operation.run.workflow_id}"
    permission_text = f": this requires the permission {operation.permission}" if operation.permission else ""
    raise ActionNotPermitted(f"{user} may not {operation.action} {run_text}{permission_text}")
