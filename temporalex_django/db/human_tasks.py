"""Human tasks in SQL, and the people who may decide them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import DatabaseError, transaction
from django.db.models import Q

from temporalex_django.access import policy
from temporalex_django.authoring import authorization
from temporalex_django.conf import codec, object_from_setting
from temporalex_django.core.human_tasks import FormSpec, HumanTaskSpec, HumanTaskState, question
from temporalex_django.core.names import MAX_LENGTH
from temporalex_django.engine.contracts.records import HumanTaskWrite, RunWrite
from temporalex_django.engine.refusals import RefusedRedelivery, RefusedSignal
from temporalex_django.models import Candidate, Ending, HumanTask, OperatorAction
from temporalex_django.present.human_tasks import Absent

# --- human tasks ------------------------------------------------------------------------------------------------------
#
# Rows of human tasks (decisions that people are asked for), as the transactions that advance runs write them.
#
# Only runs that ask people have such rows.


#: Columns that a turn may change. The others belong to the people who work on the task.
_CHANGES = (
    *(
        "title",
        "outcomes",
        "asked",
        "declared",
        "form",
        "shows",
        "four_eyes",
        "due_at",
        "reminders",
        "reminded_at",
        "escalated_at",
    ),
    *("closed_at", "ending", "outcome", "decided_by_key", "decided_by_name", "decided_for", "comment"),
)


def write_human_tasks(writes: Sequence[RunWrite], *, alias: str) -> None:
    """Store the changes of turns to human tasks, in the open transaction. Locks their rows.

    The open tasks of runs that were closed from outside are closed, too; they are added to ``human_tasks`` of the
    writes.
    """
    for write in writes:
        if write.is_closed_externally:
            written_ids = {task_write.id for task_write in write.human_tasks}
            write.human_tasks += closed_with_run(
                write.run.run_id, at=write.events[-1].at, except_for=written_ids, alias=alias
            )
    task_writes = [task_write for write in writes for task_write in write.human_tasks]
    if not task_writes:
        return
    still_open = [task_write for task_write in task_writes if not task_write.task.ending]
    existing = [task_write for task_write in still_open if "opened" not in task_write.changes]
    _expire_claims(existing, alias=alias)
    HumanTask.objects.using(alias).bulk_create(
        [_task_row(task_write) for task_write in task_writes],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=_CHANGES,
    )
    if closed := [task_write.id for task_write in task_writes if task_write.task.ending]:
        Candidate.objects.using(alias).filter(task__in=closed).delete()
    _delete_stale_candidates(existing, alias=alias)
    _insert_candidates(still_open, alias=alias)


def _insert_candidates(task_writes: Sequence[HumanTaskWrite], *, alias: str) -> None:
    """Insert rows for those who may decide and those who may not. Rows that exist stay."""
    new = [candidate for task_write in task_writes for candidate in _candidate_rows(task_write.id, task_write.task)]
    Candidate.objects.using(alias).bulk_create(new, ignore_conflicts=True)


def _expire_claims(task_writes: Sequence[HumanTaskWrite], *, alias: str) -> None:
    """End claims and delegations of tasks whose question has changed: they were for the old one. See decision 47."""
    questions = {task_write.id: task_write.task.spec.question for task_write in task_writes}
    if not questions:
        return
    rows = HumanTask.objects.using(alias).filter(pk__in=questions)
    changed = [row.pk for row in rows if question_of(row) != questions[row.pk]]
    if changed:
        rows.filter(pk__in=changed).update(claimed_by_key="", claimed_by_name="", claimed_until=None, delegated=[])


def question_of(row: HumanTask) -> dict[str, Any]:
    """Return the question of a stored human task as plain data, to compare it with ``HumanTaskSpec.question``.

    It has the title, the candidates, the outcomes, the form, and a digest of the data that people decide about. If both
    differ, the code asks another question by now.
    """
    form = None
    if row.form is not None:
        form = {"name": row.form["name"], "digest": row.form["digest"]}
    shows = None
    if row.shows is not None:
        shows = codec().decode(bytes(row.shows))
    return question(row.title, candidates=row.declared, outcomes=row.outcomes, form=form, shows=shows)


def _delete_stale_candidates(task_writes: Sequence[HumanTaskWrite], *, alias: str) -> None:
    """Delete rows of candidates whom the code no longer asks. People with a delegation stay."""
    tasks = {entry.id: entry.task for entry in task_writes}
    if not tasks:
        return
    delegations = HumanTask.objects.using(alias).filter(pk__in=tasks).values_list("pk", "delegated")
    for pk, delegated in delegations:
        principals = {entry.who for entry in _candidate_rows(pk, tasks[pk])} | {
            f"user:{entry['to']}" for entry in delegated
        }
        Candidate.objects.using(alias).filter(task=pk).exclude(who__in=principals).delete()


def delete_human_tasks(run: UUID, *, alias: str) -> None:
    """Delete the human tasks of a run that is being deleted."""
    HumanTask.objects.using(alias).filter(run_id=run).delete()


def _task_row(task_write: HumanTaskWrite) -> HumanTask:
    task, asking = task_write.task, task_write.task.spec
    return HumanTask(
        id=task_write.id,
        run_id=task_write.run_id,
        chain_id=task_write.chain_id,
        workflow=task_write.workflow,
        workflow_id=task_write.workflow_id,
        key=task.key,
        title=asking.title,
        outcomes=[*asking.outcomes],
        asked=[*task.candidates],
        declared=[*asking.candidates],
        form=None if asking.form is None else asking.form.as_dict(),
        shows=None if asking.shows is None else codec().encode(asking.shows),
        four_eyes=asking.four_eyes,
        requested_by_key="" if task.requested_by is None else task.requested_by.key,
        requested_by_name="" if task.requested_by is None else task.requested_by.name,
        opened_at=task.opened_at,
        due_at=task.due_at,
        reminders=task.reminders,
        reminded_at=task.reminded_at,
        escalated_at=task.escalated_at,
        closed_at=task.closed_at,
        ending=task.ending,
        outcome=task.outcome,
        decided_by_key="" if task.decided_by is None else task.decided_by.key,
        decided_by_name="" if task.decided_by is None else _column_name(task.decided_by.name),
        decided_for=_column_name(task.decided_for),
        comment=task.comment,
    )


def _column_name(name: str) -> str:
    """Return the name as its column can store it: shortened, without NUL and invalid characters."""
    return name[:MAX_LENGTH].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _candidate_rows(task_id: UUID, task: HumanTaskState) -> list[Candidate]:
    """Return the rows for those who may decide a task, and for excluded users."""
    may = [Candidate(task_id=task_id, who=word, barred=False) for word in task.candidates]
    return may + [Candidate(task_id=task_id, who=f"key:{key}", barred=True) for key in task.barred]


def closed_with_run(run: UUID, *, at: datetime, except_for: Collection[UUID], alias: str) -> list[HumanTaskWrite]:
    """Return the writes that close the open human tasks of a run that was closed from outside, such as terminated.

    ``at`` is the time of its end. Tasks whose ids are in ``except_for`` are left out.
    """
    rows = HumanTask.objects.using(alias).open().filter(run_id=run).exclude(pk__in=except_for)
    return [
        HumanTaskWrite(
            run_id=row.run_id,
            chain_id=row.chain_id,
            workflow=row.workflow,
            workflow_id=row.workflow_id,
            changes=("closed",),
            task=_task_state(row).as_closed(Ending.RUN_CLOSED.value, at),
        )
        for row in rows
    ]


def _task_state(row: HumanTask) -> HumanTaskState:
    """Return the state as far as its row has it. Other fields have their defaults."""
    form = None
    if row.form is not None:
        form = FormSpec(**row.form)
    outcomes = tuple(row.outcomes)
    asking = HumanTaskSpec(title=row.title, label=row.title, outcomes=outcomes, four_eyes=row.four_eyes, form=form)
    return HumanTaskState(
        key=row.key,
        spec=asking,
        candidates=tuple(row.asked),
        opened_at=row.opened_at,
        due_at=row.due_at,
        reminders=row.reminders,
        reminded_at=row.reminded_at,
        escalated_at=row.escalated_at,
    )


# --- deciders ---------------------------------------------------------------------------------------------------------
#
# Deciders: the people who may decide human tasks, and tasks that have none, or none left under the four-eyes rule.


#: Number of users with a permission that the access policy judges, besides the excluded ones.
_EXTRA_HOLDERS = 50


def undecidable_tasks(tasks: Iterable[HumanTask], *, alias: str) -> set[UUID]:
    """Return the ids of the open tasks under the four-eyes rule that no stored user may decide.

    The rule excludes users, such as the one who asked, and here it excludes everybody whom the task asks. There is one
    read for all tasks, and one for each group, each permission and all users that they name. Nothing is read if no task
    is under the rule. A task counts as decidable if that cannot be known, as with permissions that are not stored.
    """
    open_tasks = [task for task in tasks if task.four_eyes and task.is_open]
    if not open_tasks:
        return set()
    barred: dict[UUID, set[str]] = {task.pk: set() for task in open_tasks}
    rows = Candidate.objects.using(alias).filter(task__in=barred, barred=True)
    for task, candidate in rows.values_list("task", "who"):
        barred[task].add(candidate.removeprefix("key:"))
    principals = {task.pk: _principals_of(task) for task in open_tasks}
    user_keys = _resolve_principals(
        {word for words in principals.values() for word in words}, limit=max(map(len, barred.values())), alias=alias
    )
    return {pk for pk, words in principals.items() if not _has_decider(words, user_keys, barred[pk])}


def absent_deciders(
    tasks: Iterable[HumanTask], *, alias: str, with_permissions: bool = True
) -> dict[UUID, list[Absent]]:
    """Return, for each of the open tasks that nobody can decide, whom it asks and why they cannot.

    A task asks users, groups and holders of permissions. Nobody is among these if the users are gone or inactive, the
    groups do not exist or have no active member, and nobody has the permissions. A superuser counts as a holder of each
    permission, but as a member of no group. A task counts as decidable if that cannot be known, or if it asks holders
    of a permission and ``with_permissions`` is False. One read for all users, two for all groups, and one for each
    permission.
    """
    principals_by_task = {task.pk: _principals_of(task) for task in tasks if task.is_open}
    named = {principal for principals in principals_by_task.values() for principal in principals}
    if not with_permissions:
        named = {principal for principal in named if not principal.startswith("perm:")}
    reasons = _absences(named, alias=alias)
    return {
        pk: [reasons[principal] for principal in principals]
        for pk, principals in principals_by_task.items()
        if principals and all(principal in reasons for principal in principals)
    }


def _absences(principals: Collection[str], *, alias: str) -> dict[str, Absent]:
    """Return those of the principals that include no active user, with the reason."""
    model: Any = get_user_model()
    users = model._default_manager.using(alias)  # noqa: SLF001 - Django documents it
    if _has_field(model, "is_active"):
        users = users.filter(is_active=True)
    names: dict[str, list[str]] = {}
    for principal in sorted(principals):
        kind, _, name = principal.partition(":")
        names.setdefault(kind, []).append(name)
    absent = _absent_users(users, names.get("user", ())) | _absent_groups(users, names.get("group", ()), alias=alias)
    for name in names.get("perm", ()):
        holders = _permission_holders(users, f"perm:{name}", name, limit=0)
        if holders is not None and not holders:
            absent[f"perm:{name}"] = Absent("perm", name)
    return absent


def _absent_users(users: Any, names: Sequence[str]) -> dict[str, Absent]:
    if not names:
        return {}
    field = users.model.USERNAME_FIELD
    present_names = set(users.filter(**{f"{field}__in": names}).values_list(field, flat=True))
    return {f"user:{name}": Absent("user", name) for name in names if name not in present_names}


def _absent_groups(users: Any, names: Sequence[str], *, alias: str) -> dict[str, Absent]:
    """Return groups with none of the active ``users``."""
    if not names or not _has_field(users.model, "groups"):
        return {}
    group_names = set(users.filter(groups__name__in=names).values_list("groups__name", flat=True).distinct())
    empty_names = [name for name in names if name not in group_names]
    if not empty_names:
        return {}
    stored_names = set(Group.objects.using(alias).filter(name__in=empty_names).values_list("name", flat=True))
    return {f"group:{name}": Absent("empty_group" if name in stored_names else "group", name) for name in empty_names}


def undefined_principals(principals: Collection[str], *, alias: str) -> dict[str, str]:
    """Return those of the groups and permissions that are not stored, each with its kind and name.

    Permissions are judged only if the tables of Django hold all of them. The result is empty if the tables cannot be
    queried, as before ``migrate``. Two reads at most.
    """
    names: dict[str, set[str]] = {"group": set(), "perm": set()}
    for principal in principals:
        kind, _, name = principal.partition(":")
        names[kind].add(name)
    try:
        if names["group"]:
            groups = Group.objects.using(alias).filter(name__in=names["group"])
            names["group"] -= {*groups.values_list("name", flat=True)}
        if names["perm"] and _has_stored_permissions(object_from_setting("ACCESS_POLICY").permits):
            permissions = Permission.objects.using(alias).values_list("content_type__app_label", "codename")
            codenames = {name.partition(".")[2] for name in names["perm"]}
            names["perm"] -= {f"{app}.{code}" for app, code in permissions.filter(codename__in=codenames)}
        else:
            names["perm"].clear()
    except DatabaseError:
        return {}
    return {f"group:{name}": f"the group {name}" for name in names["group"]} | {
        f"perm:{name}": f"the permission {name}" for name in names["perm"]
    }


def _principals_of(task: HumanTask) -> tuple[str, ...]:
    return (*task.asked, *(f"user:{delegation['to']}" for delegation in task.delegated))


def named_people(principals: Collection[str], *, limit: int, alias: str) -> list[str]:
    """Return login names of active users whom the principals name or include, in their order, at most ``limit``.

    Only stored permissions count, and superusers are left out, who have all of them. One read, or none.
    """
    model: Any = get_user_model()
    users = model._default_manager.using(alias)  # noqa: SLF001 - Django documents it
    if _has_field(model, "is_active"):
        users = users.filter(is_active=True)
    names: dict[str, set[str]] = {"user": set(), "group": set(), "perm": set()}
    for principal in principals:
        kind, _, name = principal.partition(":")
        names.setdefault(kind, set()).add(name)
    condition = Q(**{f"{model.USERNAME_FIELD}__in": names["user"]})
    if _has_field(model, "groups"):
        condition |= Q(groups__name__in=names["group"])
    if _has_field(model, "groups") and _has_field(model, "user_permissions"):
        for name in names["perm"]:
            condition |= _holder_condition(name)
    rows = users.filter(condition).order_by(model.USERNAME_FIELD).values_list(model.USERNAME_FIELD, flat=True)
    return [*rows.distinct()[:limit]] if principals else []


def _holder_condition(permission: str) -> Q:
    """Return the condition of users who have a stored permission themselves or by a group."""
    app, _, code = permission.partition(".")
    own = Q(user_permissions__content_type__app_label=app, user_permissions__codename=code)
    return own | Q(groups__permissions__content_type__app_label=app, groups__permissions__codename=code)


def _has_decider(
    principals: Sequence[str], user_keys: Mapping[str, Collection[str] | None], barred: Collection[str]
) -> bool:
    """Return True if a principal includes a user who is not ``barred``, or if that cannot be known (None)."""
    return any(
        (keys := user_keys[principal]) is None or any(key not in barred for key in keys) for principal in principals
    )


def _resolve_principals(principals: Collection[str], *, limit: int, alias: str) -> dict[str, Collection[str] | None]:
    """Return the keys of each principal's active users, ``limit`` + 1 or more if there are. None: unknown."""
    model: Any = get_user_model()
    users = model._default_manager.using(alias)  # noqa: SLF001 - Django documents it
    if _has_field(model, "is_active"):
        users = users.filter(is_active=True)
    user_keys: dict[str, Collection[str] | None] = {principal: set() for principal in principals}
    names = {principal.partition(":")[2]: principal for principal in principals if principal.startswith("user:")}
    if names:
        field = model.USERNAME_FIELD
        for pk, name in users.filter(**{f"{field}__in": names}).values_list("pk", field):
            user_keys[names[name]] = {str(pk)}

    # No index finds superusers, so they are read once, and only for a group with few members.
    @cache
    def superusers() -> Collection[str]:
        return _keys_of(users.filter(_superuser_filter(model)), limit)

    for principal in principals:
        kind, _, name = principal.partition(":")
        if kind == "group":
            user_keys[principal] = _group_members(users, name, superusers, limit=limit)
        elif kind == "perm":
            user_keys[principal] = _permission_holders(users, principal, name, limit=limit)
    return user_keys


def _group_members(
    users: Any, name: str, superusers: Callable[[], Collection[str]], *, limit: int
) -> Collection[str] | None:
    """Return keys, superusers included; ``limit`` + 1 or more if there are. None: the user model has no groups."""
    if not _has_field(users.model, "groups"):
        return None
    members = _keys_of(users.filter(groups__name=name), limit)
    return members if len(members) > limit else {*members, *superusers()}


def _keys_of(users: Any, limit: int) -> set[str]:
    return {str(pk) for pk in users.values_list("pk", flat=True)[: limit + 1]}


def _permission_holders(users: Any, principal: str, name: str, *, limit: int) -> Collection[str] | None:
    """Return keys, over ``limit`` if there are. None: the policy or a backend may grant more than the tables show."""
    if not (_has_field(users.model, "groups") and _has_field(users.model, "user_permissions")):
        return None
    rows = users.filter(_holder_condition(name) | _superuser_filter(users.model)).distinct()[: limit + _EXTRA_HOLDERS]
    permits = object_from_setting("ACCESS_POLICY").permits
    # More keys than ``limit``, the most users that a task excludes, prove that somebody is left. Fewer prove nothing if
    # permissions may come from elsewhere.
    holder_keys = {str(user.pk) for user in rows if authorization.matches_candidate(user, principal, permits=permits)}
    if len(holder_keys) > limit or _has_stored_permissions(permits):
        return holder_keys
    return None


def _has_stored_permissions(permits: Any) -> bool:
    """Return True if Django's tables hold all permissions: with its own backend and this package's policy."""
    ours = permits.__func__.__module__ == "temporalex_django.access"
    return ours and [*settings.AUTHENTICATION_BACKENDS] == ["django.contrib.auth.backends.ModelBackend"]


def _superuser_filter(model: Any) -> Q:
    if _has_field(model, "is_superuser"):
        return Q(is_superuser=True)
    return Q(pk__in=())


def _has_field(model: Any, field: str) -> bool:
    try:
        model._meta.get_field(field)  # noqa: SLF001 - Django documents it
    except FieldDoesNotExist:
        return False
    return True


_STANDS_IN = "stands_in_for:"


class DatabaseJudge:
    """Decides for one turn which users may send which messages, by their permissions in the database.

    It implements ``core.messages.sender.Judge``. It reads each user once, with their permissions. The next turn reads
    them again.

    It asks authentication backends of the project inside a savepoint of ``alias``, where the turn's transaction is. So
    the turn continues even if their statements fail.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._users: dict[str, Any] = {}
        self._verdicts: dict[tuple[str, str], bool] = {}

    def __call__(self, key: str, permission: str, message: str) -> bool:
        """Return True if the user whose primary key has the text ``key`` has the permission.

        The permission ``stands_in_for:KEY`` asks if the user stands in for the user with the key ``KEY``. The result is
        False for users who are deleted, inactive or were never stored. Raises the errors of the authentication
        backends. ``message`` is not used.
        """
        del message
        if (key, permission) not in self._verdicts:
            with transaction.atomic(using=self._alias):
                self._verdicts[key, permission] = self._has_permission(key, permission)
        return self._verdicts[key, permission]

    def _has_permission(self, key: str, permission: str) -> bool:
        if key not in self._users:
            pk = _primary_key(key)
            users = get_user_model()._default_manager  # noqa: SLF001 - as authentication backends do
            self._users[key] = None if pk is None else users.filter(pk=pk).first()
        user, access_policy = self._users[key], policy()
        if user is None:
            return False
        if permission.startswith(_STANDS_IN):
            principals = access_policy.stands_in_for(user) if getattr(user, "is_active", True) else ()
            return any(
                authorization.sender_key(principal) == permission.removeprefix(_STANDS_IN) for principal in principals
            )
        return authorization.is_authorized(user, permission, permits=access_policy.permits)


def audit_refused_signals(refused: Sequence[RefusedSignal], *, alias: str) -> None:
    """Write an audit row for each refused signal, in the open transaction."""
    OperatorAction.objects.using(alias).bulk_create(
        OperatorAction(
            at=refusal.at,
            action="signal",
            actor_id=_primary_key(refusal.sender.key),
            actor_name=refusal.sender.name,
            run_id=refusal.run_id,
            workflow=refusal.workflow,
            workflow_id=refusal.workflow_id,
            reason=refusal.reason,
            source="turn",
            automatic=True,
            denied=True,
            details={"signal": refusal.signal, "refused": refusal.permission},
        )
        for refusal in refused
    )


def audit_refused_redeliveries(messages: Sequence[RefusedRedelivery], *, alias: str) -> None:
    """Write an audit row for each refused message that a reset or fork had delivered again.

    It runs in the open transaction.
    """
    OperatorAction.objects.using(alias).bulk_create(
        OperatorAction(
            at=message.at,
            action=message.kind,
            actor_id=None if message.sender is None else _primary_key(message.sender.key),
            actor_name="" if message.sender is None else message.sender.name,
            run_id=message.run_id,
            workflow=message.workflow,
            workflow_id=message.workflow_id,
            reason=f"delivered again and refused: {message.code}",
            source="turn",
            details={message.kind: message.name, "redelivered": True, "refused": message.code},
        )
        for message in messages
    )


def _primary_key(key: str) -> Any:
    """Return the primary key whose text is a sender's key, or None if the user model has no such key."""
    field = get_user_model()._meta.pk  # noqa: SLF001 - Django's documented API
    try:
        if key:
            return field.to_python(key)
        return None
    except ValidationError:
        return None
