"""A database of many runs, like that of a team after a year; the server itself makes it, in a few statements."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

#: Between two starts: a million of them are nearly a year.
STEP: Final = "30 seconds"
EVENTS_OF_THE_LONG_ONE: Final = 10_000
TENANTS: Final = 100
SUBJECTS: Final = 50_000
GROUPS: Final = 20
CLASSES: Final = ("One", "Parked", "Ten", "TenCalls", "Long")

#: The status of each of a thousand runs: most have ended, one in fourteen is open.
_STATUS = """case
  when n % 1000 < 880 then 'completed' when n % 1000 < 910 then 'failed' when n % 1000 < 920 then 'cancelled'
  when n % 1000 < 925 then 'terminated' when n % 1000 < 927 then 'timed_out' when n % 1000 < 930 then 'continued_as_new'
  when n % 1000 < 999 then 'waiting' else 'pending' end"""
_CLOSED = "n % 1000 < 930"
_ID = "(lpad(to_hex(ms + {offset}), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0') || '8' || lpad(to_hex(n), 15, '0'))::uuid"
_NEXT = "(lpad(to_hex(ms + 30000), 12, '0') || '7' || lpad(to_hex((n + 1) % 4096), 3, '0') || '8' || lpad(to_hex(n + 1), 15, '0'))::uuid"
_NUMBERS = """select n, at, (extract(epoch from at) * 1000)::bigint as ms from (
  select n, %(now)s::timestamptz - (%(runs)s - n) * interval '{step}' - interval '2 minutes' as at from generate_series(1, %(runs)s) n) s"""

#: Scattered over the whole time, so that the rows of a page lie far apart: one run in 5,000 is blocked, and so on.
_BLOCKED, _PAUSED, _LATE, _CHILD = "n % 5000 = 997", "n % 5000 = 1996", "n % 9000 = 2998", "n % 30000 = 1995"
_IS_CHILD = "n % 30000 = 1994"  # of the run after it
#: Of a thousand open runs, a hundred and forty ask people; people have claimed one in ten of these.
_ASKS, _TAKEN = "n % 1000 between 971 and 980", "n % 1000 = 971"
_TIMER, _ACTIVITY = "n % 1000 between 930 and 944", "n % 1000 between 945 and 960"


def build(runs: int, *, events: int = 6, recorded: float = 0.1) -> dict[str, Any]:
    """Fill the tables. The newest runs, the share ``recorded`` of all, have a history of ``events`` events each.

    Returns the id of the run with a long history, and the sizes of the tables.
    """
    from django.contrib.auth import get_user_model
    from django.contrib.contenttypes.models import ContentType
    from django.db import connection

    from temporalex_django.conf import codec

    encode = codec().encode
    values: dict[str, Any] = {
        "runs": runs,
        "now": datetime.now(UTC),  # one time for all statements, because ids are made of it
        "kind": ContentType.objects.get_for_model(get_user_model()).pk,
        "args": encode({"customer": 17, "total": "120.00"}),
        "published": encode({"phase": "approval", "total": "120.00"}),
        "done": encode({"result": {"total": "120.00"}}),
        "failed": encode({"type": "CardDeclined", "message": "the bank said no", "reason": None, "traceback": "…"}),
        "event": encode({"name": "add_item", "args": {"sku": "A-17", "count": 2}, "id": "1"}),
        "failure": encode({"type": "ConnectionError", "message": "the mail server does not answer", "traceback": "…"}),
        "classes": [*CLASSES],
        "long": EVENTS_OF_THE_LONG_ONE,
        "events": events,
        "older": runs - int(runs * recorded),
    }
    numbers = _NUMBERS.format(step=STEP)
    run, chain = _ID.format(offset=0), _ID.format(offset=1)
    workflow = "(%(classes)s::text[])[case when n % 997 = 0 then 5 else 1 + n % 4 end]"
    name = f"'t' || lpad((n % {TENANTS})::text, 2, '0') || '-order-' || n"
    with connection.cursor() as cursor:
        for statement in (
            f"""insert into auth_user (id, password, is_superuser, username, first_name, last_name, email, is_staff, is_active,
                  date_joined) select n, '', false, 'customer-' || n, '', '', '', false, true, now()
                from generate_series(1000, {SUBJECTS} - 1) n""",
            f"""insert into temporalex_chain (id, run_id, queue, due_at, closed, paused, length, activations, open_key,
                  awaits_message, awaits_timer, awaits_child)
                select {chain}, {run}, case when n % 100 = 7 then 'mail' else 'default' end,
                  case when {_CLOSED} then null when {_LATE} then at when {_TIMER} then now() + interval '3 days'
                    when n % 1000 = 999 then now() + interval '1 hour' end,
                  {_CLOSED}, {_PAUSED}, %(events)s, %(events)s / 2, case when {_CLOSED} then null else 'k' || n end,
                  not ({_CLOSED} or {_CHILD} or {_TIMER} or {_ACTIVITY}), {_TIMER} and not ({_CHILD}), {_CHILD} and not ({_CLOSED})
                from ({numbers}) r""",
            f"""insert into temporalex_instance (id, chain_id, workflow_id, workflow, version, queue, status, blocked, paused,
                  waiting_for, waits, accepts, args, seed, published, stored, closing, subject_type_id, subject_id, tags,
                  parent_run_id, parent_seq, created_at, started_at, closed_at)
                select {run}, {chain}, {name}, {workflow}, 1 + n % 2,
                  case when n % 100 = 7 then 'mail' else 'default' end, {_STATUS},
                  case when {_BLOCKED} then '{{"code": "nondeterminism", "error": "x", "attempt": 3}}'::jsonb end,
                  case when {_PAUSED} then '{{"since": "2026-01-01T00:00:00+00:00", "reason": "", "by": null}}'::jsonb end,
                  case when {_CLOSED} then null when {_CHILD} then '["child t00-order-1"]'::jsonb
                    when {_TIMER} then '["timer three"]' when {_ACTIVITY} then '["activity send_mail two"]'
                    else '["phase: update count, signal stop"]' end,
                  case when {_CLOSED} then null when {_CHILD} then '[{{"kind": "child", "name": "One", "seq": 3}}]'::jsonb
                    when {_TIMER} then '[{{"kind": "timer", "seq": 3}}]' when {_ACTIVITY} then '[]' else '[{{"kind": "phase"}}]' end,
                  case when {_CLOSED} then null else '{{"signals": ["stop"], "updates": ["count"]}}'::jsonb end,
                  %(args)s, n, %(published)s, jsonb_build_object('phase', case when {_CLOSED} then 'paid' else 'approval' end,
                    'total', (n % 1500) || '.00'),
                  case when n % 1000 < 880 then %(done)s when n % 1000 < 930 then %(failed)s end::bytea,
                  case when n % 2 = 0 then %(kind)s::int end, case when n % 2 = 0 then (n % {SUBJECTS})::text end,
                  case when n % 3 = 0 then '["shop", "web"]'::jsonb when n % 20000 = 1 then '["seldom"]'::jsonb end,
                  case when {_IS_CHILD} then {_NEXT} end, case when {_IS_CHILD} then 3 end,
                  at, at, case when {_CLOSED} then at + interval '20 seconds' end from ({numbers}) r""",
            f"""insert into temporalex_search_attribute (run_id, workflow, name, place, text, number)
                select {run}, 'Parked', a.name, 0, a.text, a.number from ({numbers}) r,
                  lateral (values ('customer', 'customer-' || n % {SUBJECTS}, null::numeric), ('total', null, n % 1500)) a (name, text, number)
                where {workflow} = 'Parked'""",
            f"""insert into temporalex_activity_task (chain_id, run_id, workflow_id, workflow, seq, activity, call, options,
                  queue, run_queue, attempt, scheduled_at, due_at, failure, failed_at, failed_attempt)
                select {chain}, {run}, {name}, {workflow}, 2, 'send_mail', %(args)s, %(args)s, 'default', 'default',
                  case when n % 7000 = 950 then 8 else 1 end, at, now() + interval '1 hour', %(failure)s, at, 1
                from ({numbers}) r where {_ACTIVITY}""",
            f"""insert into temporalex_message (chain_id, queue, kind, name, body, settled, fresh, created_at)
                select {chain}, 'default', 'signal', 'stop', %(args)s, false, false, at
                from ({numbers}) r where n % 1000 between 961 and 970""",
            f"""insert into temporalex_history_event (run_id, seq, activation, kind, at, attributes)
                select {run}, s, (s + 1) / 2, (array['ActivationStarted', 'UpdateAccepted'])[1 + s % 2], at, %(event)s
                from ({numbers}) r, generate_series(1, %(events)s) s where n > %(older)s""",
            f"""insert into temporalex_history_event (run_id, seq, activation, kind, at, attributes)
                select {run}, s, 1 + s / 2, case s % 2 when 0 then 'ActivationStarted' else 'UpdateAccepted' end, at, %(event)s
                from ({numbers}) r, generate_series(%(events)s + 1, %(long)s) s where n = {_long(runs)}""",
            f"""insert into temporalex_human_task (id, run_id, chain_id, workflow, workflow_id, key, title, outcomes, asked, declared, four_eyes,
                  requested_by_key, requested_by_name, opened_at, due_at, reminders, claimed_by_key, claimed_by_name, claimed_until,
                  delegated, closed_at, ending, outcome, decided_by_key, decided_by_name, decided_for, comment)
                select {_ID.format(offset=2)}, {run}, {chain}, {workflow}, {name}, '1', 'Approve order ' || n || ' over 120.00',
                  '["approved", "rejected"]'::jsonb, jsonb_build_array('group:g' || n % {GROUPS}), jsonb_build_array('group:g' || n % {GROUPS}), 'chain', '1000', 'customer-1000', at,
                  case when n % 3 > 0 then at + interval '400 days' end, 0, case when {_TAKEN} then '1001' else '' end,
                  case when {_TAKEN} then 'customer-1001' else '' end, case when {_TAKEN} then now() + interval '1 hour' end, '[]'::jsonb,
                  case when {_CLOSED} then at end, case when {_CLOSED} then 'decided' else '' end,
                  case when {_CLOSED} then 'approved' else '' end, '', '', '', ''
                from ({numbers}) r where {_ASKS} or n % 1000 < 100""",
            f"""insert into temporalex_candidate (task_id, who, barred)
                select {_ID.format(offset=2)}, who, barred from ({numbers}) r, lateral (values ('group:g' || n % {GROUPS}, false),
                  ('key:1000', true), ('perm:temporalex_django.view_worker', false)) c (who, barred)
                where {_ASKS} and (who not like 'perm%%' or n % 1000 = 975)""",
            f"""update temporalex_chain set length = %(long)s, activations = %(long)s / 2 where open_key = 'k{_long(runs)}'""",
        ):
            cursor.execute(
                statement.replace("%", "%%").replace("%%(", "%("), values
            )  # every other percent sign is a modulo
        cursor.execute("vacuum analyze")
        cursor.execute("select run_id from temporalex_chain where open_key = %s", [f"k{_long(runs)}"])
        (long_one,) = cursor.fetchone()
        cursor.execute(
            "select relname, pg_total_relation_size(oid) / 1000000 from pg_class where relkind = 'r' and relname like 'temporalex%'"
            " and pg_total_relation_size(oid) > 10000000 order by 2 desc"
        )
        sizes = dict(cursor.fetchall())
    return {"runs": runs, "long_one": str(long_one), "megabytes": sizes}


def never_due() -> None:
    """Keep workers from the runs that were made: due times move by thirty years, and no run waits for new code."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("update temporalex_instance set blocked = null where blocked is not null")
        for table in ("chain", "activity_task"):
            cursor.execute(
                f"update temporalex_{table} set due_at = now() + interval '30 years' where due_at is not null"
            )


def _long(runs: int) -> int:
    """Return the number of the run with a long history: one of the last that wait for a message."""
    return runs - runs % 1000 - 10 if runs > 1000 else 975
