"""Activities of every kind that leave something behind, and look at what others have left."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async

from temporalex_django import Ok, RetryPolicy, Workflow, activity
from temporalex_django.errors import ActivityFailure

VARIABLE: ContextVar[str] = ContextVar("tests_scopes", default="untouched")
_ONCE = RetryPolicy(max_attempts=1)


def look() -> list[Any]:
    from django.utils import timezone, translation

    return [translation.get_language(), timezone.get_current_timezone_name(), decimal.getcontext().prec, VARIABLE.get()]


def litter() -> list[Any]:
    from django.utils import timezone, translation

    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    decimal.getcontext().prec = 5
    VARIABLE.set("left behind")
    return look()


def sql(*statements: str) -> Callable[[], Any]:
    """Send statements; the first value of the last one."""

    def send() -> Any:
        from django.db import connection

        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchone()[0] if cursor.description else None

    return send


def count_users() -> int:
    from django.contrib.auth import get_user_model

    return int(get_user_model().objects.count())


def use_caches() -> Any:
    from django.core.cache import caches

    caches["default"].set("tests.scopes", 1)
    return caches["default"].get("tests.scopes")


def backend_pid() -> int:
    return int(sql("select pg_backend_pid()")())


def open_atomic() -> None:
    from django.db import transaction

    transaction.atomic().__enter__()


def write_in_open_atomic() -> None:
    from django.contrib.auth import get_user_model

    open_atomic()
    get_user_model().objects.create(username="left")


def turn_autocommit_off() -> None:
    from django.db import transaction

    transaction.set_autocommit(False)


def close_in_atomic() -> None:
    from django.db import connection

    open_atomic()
    connection.close()


def begin_and_fail() -> None:
    sql("begin")()
    raise LookupError("its own error")


def catch_database_error() -> str:
    from django.contrib.auth import get_user_model
    from django.db import IntegrityError

    get_user_model().objects.create(username="one")
    try:
        get_user_model().objects.create(username="one")
    except IntegrityError:
        return "caught"
    return "created twice"


def catch_database_error_in_block() -> str:
    from django.contrib.auth import get_user_model
    from django.db import IntegrityError, transaction

    get_user_model().objects.create(username="two")
    try:
        with transaction.atomic():
            get_user_model().objects.create(username="two")
    except IntegrityError:
        return "undone"
    return "created twice"


def set_rollback() -> str:
    from django.contrib.auth import get_user_model
    from django.db import transaction

    get_user_model().objects.create(username="one")
    transaction.set_rollback(True)
    return "done"


def rolled_back_setting() -> str:
    from django.db import transaction

    class Undo(Exception):
        pass

    try:
        with transaction.atomic():
            sql("set local work_mem = '1MB'")()
            raise Undo
    except Undo:
        return str(sql("show work_mem")())


ACTIONS: dict[str, Callable[[], Any]] = {
    function.__name__: function
    for function in (
        *(look, litter, count_users, use_caches, backend_pid, open_atomic, write_in_open_atomic),
        *(turn_autocommit_off, close_in_atomic, begin_and_fail, rolled_back_setting),
        *(catch_database_error, catch_database_error_in_block, set_rollback),
    )
}


def act(action: str) -> Any:
    """Do what is named, or send the statements that are given."""
    known = ACTIONS.get(action)
    return known() if known is not None else sql(*action.split(" ;; "))()


@activity(retry=_ONCE)
def external(action: str) -> Any:
    return act(action)


@activity(retry=_ONCE, local=True)
def local(action: str) -> Any:
    return act(action)


@activity(retry=_ONCE, atomic=True)
def atomic(action: str) -> Any:
    return act(action)


@activity(retry=_ONCE)
async def in_the_loop(action: str) -> Any:
    if action in ("look", "litter"):
        return act(action)
    return await sync_to_async(act)(action)


@activity(retry=_ONCE, lane="process")
def in_a_process(action: str) -> Any:
    return act(action)


KINDS = {"external": external, "local": local, "atomic": atomic, "async": in_the_loop, "process": in_a_process}


class Steps(Workflow):
    """One activity after the other, each a pair of its kind and what it does; the results, or what failed."""

    name = "test.ScopedSteps"

    async def run(self, args: Any) -> Any:
        results = []
        for kind, action in args:
            try:
                results.append(await KINDS[kind](action))
            except ActivityFailure as exc:
                results.append(f"{exc.type}: {exc}")
        return Ok(results)
