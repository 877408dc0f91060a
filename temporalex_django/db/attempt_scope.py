"""The scope of an attempt: what an activity leaves behind must not reach the next one.

An attempt has a context of its own (``contextvars``), so languages, time zones and decimal contexts end with it.
Connections of Django stay open from attempt to attempt: those to caches are carried over, and those to databases
belong to the thread. A connection whose session an attempt has changed, or on which it left a transaction open, is
closed.
"""

from __future__ import annotations

import asyncio
import decimal
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from enum import Enum
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.db import DatabaseError
from django.db.transaction import TransactionManagementError

T = TypeVar("T")
#: States of a transaction in PostgreSQL's protocol: in a transaction, and in one that has failed.
_OPEN_STATES = (2, 3)


class _AttemptThread(threading.local):
    """The connections to databases that a thread has opened, and its caches that no attempt uses at the moment.

    ``cache_store`` is the ``Local`` to which the thread has added its caches. ``idle_caches`` are for attempts in
    contexts that end with them: async ones run at the same time, so each takes a set of its own. With ``is_shared``,
    the thread sends the statements of all attempts in an event loop.
    """

    def __init__(self) -> None:
        self.connections: list[weakref.ref[Any]] = []
        self.is_shared = False
        self.cache_store: Any = None
        self.idle_caches: list[tuple[Any, dict[str, Any]]] = []


_thread = _AttemptThread()
#: The scope of the attempt that runs here, or None. The wrapper of all statements asks it, so it costs no call.
current_scope: ContextVar[AttemptScope | None] = ContextVar("temporalex_attempt_scope", default=None)
#: The ``close_at`` of a connection that the end of its transaction closes.
AFTER_TRANSACTION: Final = 0.0
_shared_scopes: set[AttemptScope] = set()  # of attempts in event loops, which share the connections of a thread
_shared_connections: weakref.WeakSet[Any] = weakref.WeakSet()
_event_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()  # whose thread for statements is shared


def register_connection(connection: Any) -> None:
    """Let the attempts of this thread watch a connection that was opened in it. To repeat it changes nothing."""
    if all(reference() is not connection for reference in _thread.connections):
        _thread.connections = [reference for reference in _thread.connections if reference() is not None]
        _thread.connections.append(weakref.ref(connection))
    if _thread.is_shared or ((scope := current_scope.get()) is not None and scope.is_shared):
        _shared_connections.add(connection)


def _share_thread() -> None:
    """Let async attempts watch all connections of this thread, also those that other async code has opened."""
    _thread.is_shared = True
    _shared_connections.update(_open_connections())


@contextmanager
def outside_attempt() -> Iterator[None]:
    """Return a context manager in whose block statements belong to no attempt, such as those that open a session."""
    token = current_scope.set(None)
    try:
        yield
    finally:
        current_scope.reset(token)


def call_in_scope(activity: str, function: Callable[[], T], *, atomic: bool = False) -> T:
    """Call ``function``, which runs an attempt of the activity with that name, in a context and scope of its own."""
    if _thread.cache_store is not (store := _cache_store()):
        _open_caches()  # here, so that the contexts of all attempts of this thread have them
        _thread.cache_store = store
    return copy_context().run(_call, AttemptScope(activity, atomic=atomic), function)


def _call(scope: AttemptScope, function: Callable[[], T]) -> T:
    with scope:
        return function()


class AttemptScope:
    """A context manager for one attempt, for use inside a context of its own; see ``call_in_scope``.

    ``activity`` names the activity in errors. With ``atomic``, the attempt runs in the transaction of its run. An
    attempt in an event loop uses it with ``async with``: its statements are sent by a thread that it shares with
    others. ``takes_caches`` is for contexts that do not come from the thread of the attempt, and so lack its caches.

    The end of the block raises ``TransactionManagementError`` if the attempt has left a transaction open.
    """

    __slots__ = (
        *("_activity", "_atomic", "_before", "_caches", "_changed", "_is_suspect", "_settings", "_token", "is_lost"),
        *("_takes_caches", "is_shared", "used"),
    )

    def __init__(self, activity: str, *, atomic: bool = False, takes_caches: bool = False) -> None:
        self._activity = activity
        self._atomic = atomic
        self._takes_caches = takes_caches
        self.is_shared = False
        self._is_suspect = False  # it has begun or ended a transaction by a statement, if it shares the connection
        self.is_lost = False  # what it wrote was rolled back with a transaction that another attempt left open
        self._before: dict[Any, tuple[bool, int, int]] = {}  # connections on which a transaction was open
        self.used: set[Any] = set()  # connections, if the attempt shares them
        self._changed: set[Any] = set()  # connections whose sessions it has changed
        self._settings: dict[Any, dict[str, str | None]] = {}  # former values of settings, by connection

    def __enter__(self) -> Self:
        for connection in _open_connections():
            if connection.in_atomic_block or not connection.autocommit:
                self._before[connection] = _depth(connection)
        self._enter_context()
        return self

    def __exit__(
        self, failed: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave_context()
        if failed is None and self._settings:
            self._restore_settings()
        problem = self._settle(_open_connections())
        if problem is not None and failed is None:
            raise problem

    async def __aenter__(self) -> Self:
        if (event_loop := asyncio.get_running_loop()) not in _event_loops:
            await sync_to_async(_share_thread)()
            _event_loops.add(event_loop)
        self.is_shared = self._takes_caches = True
        _shared_scopes.add(self)
        self._enter_context()
        return self

    async def __aexit__(
        self, failed: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave_context()
        problem = None
        try:
            shared = tuple(_shared_connections)
            is_suspect = self._is_suspect or self._changed or any(map(_needs_care, shared))
            if is_suspect and failed is not GeneratorExit:  # the event loop runs nothing more after that
                # In the thread of the statements, where no call of another attempt is half done.
                problem = await asyncio.shield(asyncio.ensure_future(sync_to_async(self._settle)(shared)))
        finally:
            _shared_scopes.discard(self)
        if self.is_lost and problem is None:
            problem = TransactionManagementError(
                f"{self._activity} wrote in a transaction that another async activity left open, and that was rolled "
                "back: end each transaction in the call of sync_to_async() that begins it"
            )
        if problem is not None and failed is None:
            raise problem

    def _enter_context(self) -> None:
        self._token = current_scope.set(self)
        # A copied context has the same object, which code changes in place. This sets a copy of the default.
        decimal.setcontext(decimal.DefaultContext)
        if self._takes_caches:
            self._caches = _take_caches()

    def _leave_context(self) -> None:
        current_scope.reset(self._token)
        if self._takes_caches:
            _thread.idle_caches.append(self._caches)

    # -- statements ---------------------------------------------------------------------------------------------------

    def note_statement(self, sql: Any, connection: Any) -> None:
        """Note what a statement of the attempt leaves on its session. No statement is sent for most.

        Raises ``TransactionManagementError`` for a statement that an atomic activity may not send.
        """
        if self.is_shared:
            self.used.add(connection)
        for effect in effects_of(sql if isinstance(sql, str) else _text_of(sql, connection)):
            self._note_effect(effect, connection)

    def _note_effect(self, effect: Effect, connection: Any) -> None:
        if effect.kind is EffectKind.SESSION:
            self._changed.add(connection)
        self._is_suspect |= effect.kind is EffectKind.CONTROL
        if not self._atomic or connection not in self._before:
            return
        if effect.kind is EffectKind.CONTROL:
            raise TransactionManagementError(
                f"{self._activity} is atomic and cannot send {effect.word}: its transaction is that of its run, and "
                "commits with the next step. Use transaction.atomic() for a part of it, or an activity that is not "
                "atomic"
            )
        if effect.names is None:
            raise TransactionManagementError(
                f"{self._activity} is atomic and cannot send {effect.word} without the name of the setting in the "
                "text: the setting must end before the next step of its run. Write the name as a literal, or use an "
                "activity that is not atomic"
            )
        if effect.names and _transaction_state(connection) is not None:
            self._note_settings(effect.names, connection)

    def _note_settings(self, names: Sequence[str], connection: Any) -> None:
        """Read the values of settings that a statement is about to change."""
        for name in names:
            former = self._settings.setdefault(connection, {})
            if name not in former:
                with connection.connection.cursor() as cursor:
                    cursor.execute("select current_setting(%s, true)", [name])
                    former[name] = cursor.fetchone()[0]

    def _restore_settings(self) -> None:
        """Give changed settings their former values, before the next step of the run."""
        for connection, former in self._settings.items():
            if _transaction_state(connection) != _OPEN_STATES[0]:
                continue  # the transaction has failed, and its end restores them
            assignments = ", ".join(["set_config(%s, %s, true)"] * len(former))
            with connection.connection.cursor() as cursor:
                cursor.execute(
                    f"select {assignments}", [part for name, value in former.items() for part in (name, value or "")]
                )

    # -- the end ------------------------------------------------------------------------------------------------------

    def _settle(self, open_connections: Sequence[Any]) -> TransactionManagementError | None:
        """Close connections that the next attempt cannot use; return an error if a transaction is left open."""
        problem = None
        for connection in open_connections:
            if (before := self._before.get(connection)) is not None:
                if _depth(connection) != before:
                    _leave_blocks(connection, before)
                    problem = self._left_open(connection, "its writes were rolled back")
                elif self._atomic and connection.needs_rollback:
                    problem = TransactionManagementError(
                        f"{self._activity} caught an error of the connection {connection.alias!r} and went on, or called "
                        "set_rollback(): Django rolls back its writes. Let the error pass, or put the statement that "
                        "may fail into a block `with transaction.atomic():`"
                    )
                if connection in self._changed:
                    connection.close_at = AFTER_TRANSACTION
            elif _has_begun(connection) or _is_in_transaction(connection):
                problem = self._end_transaction(connection) or problem
            elif connection in self._changed:
                close_session(connection)
            elif self.is_shared:  # the threads of the pool do it after each attempt
                connection.close_if_unusable_or_obsolete()
        return problem

    def _end_transaction(self, connection: Any) -> TransactionManagementError | None:
        """Roll back an open transaction and return the error. None: another async attempt has it open, and it stays."""
        others = [scope for scope in tuple(_shared_scopes) if scope is not self and connection in scope.used]
        if self.is_shared and others and connection not in self.used:
            return None
        _abandon_transaction(connection)
        for scope in others:
            scope.is_lost = True
        return self._left_open(connection, "it was rolled back and the connection was closed")

    def _left_open(self, connection: Any, consequence: str) -> TransactionManagementError:
        return TransactionManagementError(
            f"{self._activity} left a transaction open on the connection {connection.alias!r}: {consequence}. End what "
            "it begins, for example with a block `with transaction.atomic():`"
        )


# -- connections to databases ------------------------------------------------------------------------------------------


def _open_connections() -> list[Any]:
    return [connection for reference in _thread.connections if (connection := reference()) is not None]


def _depth(connection: Any) -> tuple[bool, int, int]:
    return connection.in_atomic_block, len(connection.savepoint_ids), len(connection.atomic_blocks)


def _has_begun(connection: Any) -> bool:
    """Return True if Django knows of a transaction on the connection. No statement is sent."""
    is_manual = (
        connection.connection is not None and connection.autocommit is not connection.settings_dict["AUTOCOMMIT"]
    )
    return bool(connection.in_atomic_block or is_manual)


def _needs_care(connection: Any) -> bool:
    """Return True if the connection may be in a transaction, or has broken. Any thread may ask."""
    return _has_begun(connection) or bool(connection.errors_occurred)


def _is_in_transaction(connection: Any) -> bool:
    """Return True if a statement has begun a transaction on the connection. No statement is sent."""
    if connection.connection is None or not connection.settings_dict["AUTOCOMMIT"]:
        return False
    if hasattr(connection.connection, "in_transaction"):  # SQLite's driver
        return bool(connection.connection.in_transaction)
    return _transaction_state(connection) in _OPEN_STATES


def _transaction_state(connection: Any) -> int | None:
    """Return the state in PostgreSQL's protocol; None if the driver does not speak it."""
    protocol = getattr(connection.connection, "pgconn", None) or getattr(connection.connection, "info", None)
    state = getattr(protocol, "transaction_status", None)
    return None if state is None else int(state)


def _leave_blocks(connection: Any, before: tuple[bool, int, int]) -> None:
    """Leave blocks of ``atomic()`` that an attempt did not end, and roll their writes back."""
    _, savepoints, blocks = before
    first = next((sid for sid in connection.savepoint_ids[savepoints:] if sid is not None), None)
    del connection.savepoint_ids[savepoints:], connection.atomic_blocks[blocks:]
    if first is not None:
        with suppress(DatabaseError):  # a lost connection has nothing left to undo
            connection.savepoint_rollback(first)
            connection.needs_rollback = False


def _abandon_transaction(connection: Any) -> None:
    """Roll back whatever is open on the connection and close it. Django would refuse to use it for ever."""
    with suppress(Exception):  # it is closed in any case
        connection.connection.rollback()
    connection.in_atomic_block = connection.needs_rollback = connection.closed_in_transaction = False
    connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
    close_session(connection)
    if connection.connection is not None:  # SQLite keeps a database in memory
        connection.set_autocommit(connection.settings_dict["AUTOCOMMIT"])


def close_session(connection: Any) -> None:
    """Close a connection so that its session ends, also if it belongs to a pool of Django's."""
    with suppress(DatabaseError):
        if getattr(connection, "pool", None) and connection.connection is not None:
            connection.connection.close()  # the pool drops a connection that is closed
        connection.close()


def _text_of(sql: Any, connection: Any) -> str:
    """Return the text of a statement that is no string, such as one that psycopg composes."""
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    if hasattr(sql, "as_string"):
        return str(sql.as_string(connection.connection))
    return str(sql)


# -- connections to caches ---------------------------------------------------------------------------------------------


def _cache_store() -> Any:
    """Return the ``Local`` in which Django keeps the caches of a context. Tests with other settings replace it."""
    return vars(caches)["_connections"]


def _open_caches() -> dict[str, Any]:
    """Return the caches by alias, all opened, which connects to nothing. To ask which are open would cost more."""
    opened = {}
    for alias in caches:
        with suppress(Exception):  # code that uses it gets the error
            opened[alias] = caches[alias]
    return opened


def _take_caches() -> tuple[Any, dict[str, Any]]:
    """Give this context caches that no other attempt of the thread uses; return them with their store."""
    store = _cache_store()
    while _thread.idle_caches:
        owner, opened = entry = _thread.idle_caches.pop()
        if owner is store:
            for alias, cache in opened.items():
                setattr(store, alias, cache)
            return entry
    return store, _open_caches()


# --- session effects --------------------------------------------------------------------------------------------------
#
# Statements that change more than rows, recognized by their text: settings of a session, locks, transactions.


class EffectKind(Enum):
    """The part of a session that a statement affects: its transaction (``CONTROL``), or its settings and objects.

    ``LOCAL`` settings end with the transaction. ``SESSION`` is for what ends with the connection.
    """

    CONTROL = "control"
    LOCAL = "local"
    SESSION = "session"


class Effect(NamedTuple):
    """An effect of a statement. ``names`` are the settings that it changes; None if they are not in its text."""

    kind: EffectKind
    word: str
    names: tuple[str, ...] | None = ()


_LONGEST_CACHED = 4_096
_HINT = re.compile(r"advisory_lock|set_config|pg_temp|\binto\s+(?:(?:global|local)\s+)?temp|;|--|/\*")
_CONTROL_WORDS = frozenset({"begin", "start", "commit", "end", "rollback", "abort"})
_SESSION_WORDS = frozenset({"listen", "load", "discard", "prepare", "attach"})
#: Words of statements that leave something only with a certain text in them.
_MARKS = {"pragma": re.compile(r"=|\("), "declare": re.compile(r"with\s+hold")}
#: PRAGMA with the name of a table or a limit in parentheses. Others set a value there, as with "=".
_READING_PRAGMA = re.compile(r"pragma\s+(?:\w+\s*\.\s*)?(?:(?:table|index|foreign_key)_\w+|\w+_(?:check|list))\s*\(")
_WORDS = _CONTROL_WORDS | _SESSION_WORDS | {"set", "reset", "create", *_MARKS}
_SKIPPED = re.compile(r"\be'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/", re.DOTALL)
_SETTING = re.compile(
    r"(?:set|reset)\s+(?:(?:session|local)\s+(?!authorization))?(time\s+zone|session\s+authorization|(?:[\w.]|\"[^\"]+\")+)"
)
_SET_CONFIG = re.compile(r"set_config\s*\(\s*(?:'([^']*)'|[^,]*),[^;]*?,\s*([^,()]*?)\s*\)")
_TEMPORARY = re.compile(r"create\s+(?:or\s+replace\s+)?(?:(?:global|local)\s+)?temp|.*\bpg_temp\s*\.", re.DOTALL)
_INTO_TEMPORARY = re.compile(
    r"\bselect\b.*\binto\s+(?:(?:global|local)\s+)?(?:temp(?:orary)?\s|(?:table\s+)?pg_temp\s*\.)", re.DOTALL
)
#: Words of SET that are no names of settings.
_ALIASES = {
    "session_authorization": "session_authorization",
    "time_zone": "timezone",
    "schema": "search_path",
    "names": "client_encoding",
}
_TRUE = frozenset({"true", "'t'", "'true'", "'on'", "'1'", "true::bool", "true::boolean"})


def effects_of(sql: str) -> tuple[Effect, ...]:
    """Return the effects of a statement, or of several with semicolons between them; most have none.

    It sees the text alone: not what a function or a trigger does.
    """
    if len(sql) > _LONGEST_CACHED:
        return _find_effects.__wrapped__(sql)
    return _find_effects(sql)


@lru_cache(maxsize=1024)
def _find_effects(sql: str) -> tuple[Effect, ...]:
    text = sql.lower()
    first = text[:40].split(None, 1)
    if (not first or first[0].rstrip(";") not in _WORDS) and _HINT.search(text) is None:
        return ()
    text = _SKIPPED.sub(_blank, text)
    effects: list[Effect] = []
    for statement in text.split(";"):
        effects += _statement_effects(statement.strip())
    return tuple(effects)


def _blank(match: re.Match[str]) -> str:
    """Return what stands for a literal or a comment where statements are split: names in literals are kept."""
    text = match[0]
    return text.replace(";", " ") if text.startswith("'") else " "


def _statement_effects(statement: str) -> list[Effect]:
    words = statement.split(None, 3)
    if not words:
        return []
    word, second = words[0], words[1] if len(words) > 1 else ""
    if word in ("set", "reset"):
        return _setting_effects(statement, word, second)
    is_savepoint = word == "rollback" and "to" in words[1:3]
    if (word in _CONTROL_WORDS and not is_savepoint) or (word == "prepare" and second == "transaction"):
        return [Effect(EffectKind.CONTROL, word.upper())]
    effects = [Effect(EffectKind.SESSION, word.upper())] if _outlives_transaction(statement, word) else []
    for match in _SET_CONFIG.finditer(statement):
        kind = EffectKind.LOCAL if match[2] in _TRUE else EffectKind.SESSION
        effects.append(Effect(kind, "set_config", None if match[1] is None else (match[1],)))
    return effects


def _outlives_transaction(statement: str, word: str) -> bool:
    """Return True if a statement leaves something on the session that is no setting; ``word`` is its first one."""
    if word == "create":
        return _TEMPORARY.match(statement) is not None and "on commit drop" not in statement
    if word in _MARKS:
        return _MARKS[word].search(statement) is not None and _READING_PRAGMA.match(statement) is None
    return word in _SESSION_WORDS or "advisory_lock" in statement or _INTO_TEMPORARY.search(statement) is not None


def _setting_effects(statement: str, word: str, second: str) -> list[Effect]:
    """Return the effect of SET or RESET. SET CONSTRAINTS and SET TRANSACTION end with their transaction."""
    if second in ("constraints", "transaction"):
        return []
    kind = EffectKind.LOCAL if second == "local" else EffectKind.SESSION
    match = _SETTING.match(statement)
    name = None if match is None else "_".join(match[1].replace('"', "").split())
    if name is None or name == "all":
        return [Effect(kind, f"{word.upper()} {second.upper()}", None)]
    return [Effect(kind, word.upper(), (_ALIASES.get(name, name),))]
