"""Who may see and do what: one policy, which every look-up, list, count, page, command and operation asks.

``TEMPORALEX["ACCESS_POLICY"]`` names a subclass of ``AccessPolicy``. Code (``user`` None) is not asked about: it may do
everything. What a policy raises is an error for whoever asked; nothing is shown or done then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from django.db.models import QuerySet

from temporalex_django import conf
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.redaction import UNREDACTED, Redactor, redacted_paths_of
from temporalex_django.authoring.versions import VersionedWorkflow
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.errors import ActionNotPermitted, NotConfigured, WorkflowNotFound
from temporalex_django.models import HumanTask, Instance

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What somebody wants to do.

    ``action`` is its name (``view``, ``view_payload``, ``start``, ``signal``, ``update``, ``query``, ``resume``,
    ``cancel`` …), ``permission`` the Django permission that it takes (None for a message that code sends in his name:
    its handler says who may send it). ``run`` is the run that it is about, None while that is not known: may he do it
    to any? ``workflow`` is the name of its class, and ``message`` that of the signal, update, query or event, as far as
    they are known. ``activity`` is the name of the activity that it is about, None before it is looked up; ``edits``:
    somebody gives the activity another input.
    """

    action: str
    permission: str | None
    workflow: str | None = None
    message: str | None = None
    run: Instance | None = None
    activity: str | None = None
    edits: bool = False

    def of(self, run: Instance) -> Operation:
        """The same about one run."""
        return replace(self, run=run, workflow=run.workflow)


VIEW = Operation(action="view", permission=f"{APP}.view_instance")
VIEW_PAYLOAD = Operation(action="view_payload", permission=f"{APP}.view_payload")
EDIT = Operation(action="edit_activity_input", permission=f"{APP}.edit_activity_input", edits=True)


class AccessPolicy:
    """Subclass it, override what is to differ, and name the subclass in ``TEMPORALEX["ACCESS_POLICY"]``.

    One object a process serves all requests, so it keeps nothing.
    """

    def narrow(self, user: Person, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        """Those of ``runs`` that there are for this user: a tenant's, say. For him the others do not exist."""
        del user
        return runs

    def permits(self, user: Person, permission: str) -> bool:
        """Whether he has a Django permission (``app.codename``), be it a model's or a handler's."""
        return authorization.has_permission(user, permission)

    def allows(self, user: Person, operation: Operation) -> bool:
        """Whether he may do that. Asked without a run before one is looked up, and with it afterwards."""
        return operation.permission is None or self.permits(user, operation.permission)

    def startable(self, user: Person, workflow: type[Workflow]) -> bool:
        """Whether runs of this class may be started from REST, the admin and commands.

        Not of internal classes and of old versions.
        """
        del user
        dispatcher = cast("type[VersionedWorkflow] | None", workflow.dispatched_by)
        if dispatcher is not None and workflow.version != dispatcher.current:
            return not workflow.internal and dispatcher.resolve_version()[1] is workflow
        return not workflow.internal

    def permissions(self, user: Person) -> Collection[str]:
        """All that ``permits`` says yes to: the inbox looks for what is asked of those who have one of them."""
        get_permissions = getattr(user, "get_all_permissions", None)
        return get_permissions() if callable(get_permissions) else ()

    def stands_in_for(self, user: Person) -> Iterable[Person]:
        """Those in whose place he may decide human tasks as well: colleagues on leave, say."""
        del user
        return ()

    def may_delegate(self, user: Person, task: HumanTask, to: Person) -> bool:
        """Whether he, who may decide it himself, may hand a human task on to somebody, who then may."""
        del task, to
        return self.permits(user, f"{APP}.delegate_humantask")

    def mask(self, user: Person, run: Instance, value: Any) -> Any:
        """A payload as this user sees it; what its class redacts is gone already."""
        del user, run
        return value


def policy() -> AccessPolicy:
    """The one that the settings name. Raises ``NotConfigured`` when it cannot be had."""
    return cast("AccessPolicy", conf.object_from_setting("ACCESS_POLICY"))


def runs_for(user: Person | None, *, alias: str) -> QuerySet[Instance] | None:
    """The runs that there are for somebody; None: all of them."""
    if user is None:
        return None
    all_runs = Instance.objects.using(alias)
    runs = policy().narrow(user, all_runs)
    if not isinstance(runs, QuerySet) or runs.model is not Instance:
        raise NotConfigured(f"narrow() of the access policy must give a queryset of runs, not {type(runs).__name__}")
    return None if is_unfiltered(runs) else runs.using(alias)


def is_unfiltered(runs: QuerySet[Any]) -> bool:
    """Whether a queryset leaves nothing out."""
    query = runs.query
    return not (query.where or query.is_sliced or query.combinator or query.distinct_fields)


def require_access(user: Person | None, operation: Operation, *, alias: str, run: Instance | None = None) -> None:
    """Raises ``ActionNotPermitted``.

    ``WorkflowNotFound`` for a run that there is not for this user, who is told nothing else about it.
    """
    if user is None:
        return
    _require_allowed(user, operation)
    if run is None:
        return
    visible_runs = runs_for(user, alias=alias)
    if visible_runs is not None and not visible_runs.filter(pk=run.pk).exists():
        raise WorkflowNotFound("there is no such run")
    _require_allowed(user, operation.of(run))


def find_visible(find: Callable[[], T], run_of: Callable[[T], Instance], user: Person | None, *, alias: str) -> T:
    """What ``find`` gives (among the runs that there are for him) if he may look at it.

    Asked before anything is read, and after.
    """
    require_access(user, VIEW, alias=alias)
    result = find()
    require_access(user, VIEW, alias=alias, run=run_of(result) if user is not None else None)
    return result


def redactor_for(user: Person | None, run: Instance) -> Redactor:
    """What he sees of a run that he may look at."""
    if user is None:
        return UNREDACTED
    access_policy = policy()
    return Redactor(
        may_see_payloads=access_policy.allows(user, VIEW_PAYLOAD.of(run)),
        redacted_paths=redacted_paths_of(run.workflow),
        mask=partial(access_policy.mask, user, run),
    )


def _require_allowed(user: Person, operation: Operation) -> None:
    if policy().allows(user, operation):
        return
    action_text = "look at" if operation.action == "view" else operation.action
    run_text = "runs" if operation.run is None else f"{operation.run.workflow} {operation.run.workflow_id}"
    permission_text = f": that takes the permission {operation.permission}" if operation.permission else ""
    raise ActionNotPermitted(f"{user} may not {action_text} {run_text}{permission_text}")
