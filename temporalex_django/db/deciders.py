"""The people who may decide human tasks under four eyes, and whether anybody is left of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist
from django.db.models import Q

from temporalex_django.authoring import authorization
from temporalex_django.conf import made
from temporalex_django.models import Candidate, HumanTask

#: So many people with a permission are asked of the access policy, beside those who are shut out.
_ASKED = 50


def without_deciders(tasks: Iterable[HumanTask], *, alias: str) -> set[UUID]:
    """The open tasks under four eyes that nobody of the stored users may decide: everybody who is asked is shut out.

    One read for all of them, and one for each group, permission and the users that they name; none where no task is
    under four eyes. A task counts as decidable where that cannot be known, as with permissions that are not stored.
    """
    found = [task for task in tasks if task.four_eyes and task.is_open]
    if not found:
        return set()
    barred: dict[UUID, set[str]] = {task.pk: set() for task in found}
    rows = Candidate.objects.using(alias).filter(task__in=barred, barred=True)
    for task, who in rows.values_list("task", "who"):
        barred[task].add(who.removeprefix("key:"))
    asked = {task.pk: (*task.asked, *(f"user:{one['to']}" for one in task.delegated)) for task in found}
    meant = _meant(
        {word for words in asked.values() for word in words}, most=max(map(len, barred.values())), alias=alias
    )
    return {pk for pk, words in asked.items() if not _anybody(words, meant, barred[pk])}


def _anybody(words: Sequence[str], meant: Mapping[str, Collection[str] | None], barred: Collection[str]) -> bool:
    return any((keys := meant[word]) is None or any(key not in barred for key in keys) for word in words)


def _meant(words: Collection[str], *, most: int, alias: str) -> dict[str, Collection[str] | None]:
    """The keys of active users by the words that mean them, more than ``most`` of each; None: nobody can tell."""
    model: Any = get_user_model()
    users = model._default_manager.using(alias)  # noqa: SLF001 - Django documents it
    if _has(model, "is_active"):
        users = users.filter(is_active=True)
    found: dict[str, Collection[str] | None] = {word: set() for word in words}
    names = {word.partition(":")[2]: word for word in words if word.startswith("user:")}
    if names:
        field = model.USERNAME_FIELD
        for pk, name in users.filter(**{f"{field}__in": names}).values_list("pk", field):
            found[names[name]] = {str(pk)}
    for word in words:
        kind, _, name = word.partition(":")
        if kind == "group":
            found[word] = _members(users, name, most=most)
        elif kind == "perm":
            found[word] = _holders(users, word, name, most=most)
    return found


def _members(users: Any, name: str, *, most: int) -> Collection[str] | None:
    if not _has(users.model, "groups"):
        return None
    rows = users.filter(Q(groups__name=name) | _superusers(users.model)).values_list("pk", flat=True)
    return {str(pk) for pk in rows.distinct()[: most + 1]}


def _holders(users: Any, word: str, name: str, *, most: int) -> Collection[str] | None:
    """The access policy has the last word; where it or a backend of the project knows more, nobody can tell."""
    if not (_has(users.model, "groups") and _has(users.model, "user_permissions")):
        return None
    app, _, code = name.partition(".")
    own = Q(user_permissions__content_type__app_label=app, user_permissions__codename=code)
    by_group = Q(groups__permissions__content_type__app_label=app, groups__permissions__codename=code)
    rows = users.filter(own | by_group | _superusers(users.model)).distinct()[: most + _ASKED]
    permits = made("ACCESS_POLICY").permits
    found = {str(user.pk) for user in rows if authorization.matches_candidate(user, word, permits=permits)}
    return found if len(found) > most or _is_stored(permits) else None


def _is_stored(permits: Any) -> bool:
    """Whether all permissions are rows of Django: of its own backend, and of the access policy as it comes."""
    ours = permits.__func__.__module__ == "temporalex_django.access"
    return ours and [*settings.AUTHENTICATION_BACKENDS] == ["django.contrib.auth.backends.ModelBackend"]


def _superusers(model: Any) -> Q:
    return Q(is_superuser=True) if _has(model, "is_superuser") else Q(pk__in=())


def _has(model: Any, field: str) -> bool:
    try:
        model._meta.get_field(field)  # noqa: SLF001 - Django documents it
    except FieldDoesNotExist:
        return False
    return True
