"""Statements that change more than rows, recognized by their text: settings of a session, locks, transactions."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple


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
    """Return the effect of SET or RESET. SET CONSTRAINTS and SET TRANSACTION have none beyond their transaction."""
    if second in ("constraints", "transaction"):
        return []
    kind = EffectKind.LOCAL if second == "local" else EffectKind.SESSION
    match = _SETTING.match(statement)
    name = None if match is None else "_".join(match[1].replace('"', "").split())
    if name is None or name == "all":
        return [Effect(kind, f"{word.upper()} {second.upper()}", None)]
    return [Effect(kind, word.upper(), (_ALIASES.get(name, name),))]
