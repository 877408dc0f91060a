"""Which statements leave something on a session, by their text."""

from __future__ import annotations

import pytest

from temporalex_django.db.attempt_scope import Effect, EffectKind, effects_of


def kinds(sql: str) -> list[tuple[str, tuple[str, ...] | None]]:
    return [(effect.kind.value, effect.names) for effect in effects_of(sql)]


@pytest.mark.parametrize(
    "sql",
    [
        "",
        " ",
        ";",
        'SELECT "a"."id" FROM "a" WHERE "a"."name" = %s',
        "update a set role = 'set role x; commit; listen y'",
        "insert into a values ('it''s; commit')",
        "select 1 -- ; commit",
        "select 1 /* ; set role x */",
        "select $$; commit; $$",
        "do $x$ begin perform 1; end $x$",
        "SAVEPOINT s1",
        "ROLLBACK TO SAVEPOINT s1",
        "rollback work to s1",
        "RELEASE SAVEPOINT s1",
        "set constraints all immediate; set constraints all deferred",
        "set transaction isolation level serializable",
        "select pg_advisory_xact_lock(1), pg_try_advisory_xact_lock_shared(2)",
        "select pg_advisory_unlock(1)",
        "create temp table a (n int) on commit drop",
        "create table temperature (n int)",
        "create index temp_idx on a (n)",
        "declare c cursor for select 1",
        "PRAGMA table_info('a')",
        "pragma main.foreign_key_list(a); pragma quick_check(1); pragma query_only",
        "insert into temperatures (n) values (1)",
        "insert into pg_temp.a (n) values (1)",
        "select n from pg_temp.a",
        "show work_mem",
    ],
)
def test_most_leave_nothing(sql: str) -> None:
    assert effects_of(sql) == ()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("BEGIN", [("control", ())]),
        ("commit;", [("control", ())]),
        ("start transaction read only", [("control", ())]),
        ("rollback", [("control", ())]),
        ("select 1; END", [("control", ())]),
        ("-- why\ncommit", [("control", ())]),
        ("prepare transaction 'x'", [("control", ())]),
        ("set work_mem = '5MB'", [("session", ("work_mem",))]),
        ("SET SESSION work_mem TO '5MB'", [("session", ("work_mem",))]),
        ("set app.tenant = 'ann'", [("session", ("app.tenant",))]),
        ("set time zone 'UTC'", [("session", ("timezone",))]),
        ("set schema 'x'", [("session", ("search_path",))]),
        ("set role x", [("session", ("role",))]),
        ("set session role x", [("session", ("role",))]),
        ("set session authorization x", [("session", ("session_authorization",))]),
        ("set local session authorization x", [("local", ("session_authorization",))]),
        ("set local time zone 'UTC'", [("local", ("timezone",))]),
        ('set local "app"."x" = 1', [("local", ("app.x",))]),
        ("reset work_mem", [("session", ("work_mem",))]),
        ("reset all", [("session", None)]),
        ("select set_config('app.x', %s, true)", [("local", ("app.x",))]),
        (
            "select set_config('a', 'f(1, 2)', false), set_config('b', %s, %s)",
            [("session", ("a",)), ("session", ("b",))],
        ),
        ("select set_config(%s, %s, true)", [("local", None)]),
        ("select pg_advisory_lock(1)", [("session", ())]),
        ("select pg_try_advisory_lock_shared(1)", [("session", ())]),
        ("listen x", [("session", ())]),
        ("create temporary sequence s", [("session", ())]),
        ("create or replace temp view v as select 1", [("session", ())]),
        ("declare c cursor with hold for select 1", [("session", ())]),
        ("discard all", [("session", ())]),
        ("create table pg_temp.a (n int)", [("session", ())]),
        ("create function pg_temp.f() returns int language sql as 'select 1'", [("session", ())]),
        ("select 1 as n into\ttemp a", [("session", ())]),
        ("select 1 as n into local temporary a", [("session", ())]),
        ("with x as (select 1 as n) select n into pg_temp.a from x", [("session", ())]),
        ("select e'it\\'s', 'x'; set work_mem = '5MB'", [("session", ("work_mem",))]),
        ("pragma query_only(1)", [("session", ())]),
        ("pragma main.synchronous ( off )", [("session", ())]),
        ("declare c cursor with  hold for select 1", [("session", ())]),
        ("set local role x; select 1; set work_mem = 1", [("local", ("role",)), ("session", ("work_mem",))]),
        ("pragma foreign_keys = off", [("session", ())]),
    ],
)
def test_what_others_leave(sql: str, expected: list[tuple[str, tuple[str, ...] | None]]) -> None:
    assert kinds(sql) == expected
    assert kinds(sql.upper().replace("%S", "%s")) == kinds(sql)
    assert kinds(f"/* {'x' * 5_000} */ {sql}") == expected


def test_the_word_is_that_of_the_statement() -> None:
    assert effects_of("commit") == (Effect(EffectKind.CONTROL, "COMMIT"),)
