"""No public argument is accepted without effect.

Each has a test that fails when it is dropped (``scripts/arguments.py`` tries them).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.structure.public_arguments import arguments, twins
from tests.structure.source import PACKAGE

ROOT = Path(__file__).resolve().parents[2]
TABLE = tomllib.loads((Path(__file__).parent / "public_arguments.toml").read_text(encoding="utf-8"))
NO_EFFECT = TABLE.pop("without effect")
TWINS = [*twins()]


def entries() -> Iterator[tuple[str, str, str]]:
    """What takes it, its name, the test."""
    for owner, tests in TABLE.items():
        for test, names in tests.items():
            yield from ((owner, name, test) for name in names)


def test_every_argument_has_a_test_and_nothing_else_has_one() -> None:
    listed = [f"{owner}:{name}" for owner, name, _ in entries()] + [*NO_EFFECT]
    there = [f"{owner}:{name}" for owner, names in arguments().items() for name in names]

    assert sorted(set(there) - set(listed)) == []
    assert sorted(set(listed) - set(there)) == []
    assert sorted(one for one in set(listed) if listed.count(one) > 1) == []


def test_every_test_of_the_table_exists() -> None:
    known: dict[str, set[str]] = {}
    for test in {test for _, _, test in entries()}:
        path, _, name = test.partition("::")
        if path not in known:
            tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
            known[path] = {
                node.name if outer is tree else f"{outer.name}::{node.name}"  # type: ignore[attr-defined] # a class
                for outer in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef)))
                for node in outer.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            }
        assert name in known[path], f"{test} is not there"


def test_what_has_no_effect_says_why() -> None:
    assert all(len(why) > 20 for why in NO_EFFECT.values())


def test_async_twins_take_the_same_and_pass_it_on() -> None:
    for name, fn, twin in TWINS:
        own, other = (inspect.signature(one) for one in (fn, twin))  # type: ignore[arg-type] # functions

        assert [(p.name, p.kind, p.default) for p in own.parameters.values()] == [
            (p.name, p.kind, p.default) for p in other.parameters.values()
        ], name
        source = textwrap.dedent(inspect.getsource(twin))  # type: ignore[arg-type] # as above
        assert unread(ast.parse(source)) == [], name


def unread(tree: ast.AST) -> list[str]:
    """Parameters of functions that their bodies never read, but to delete them."""
    found = []
    for fn in ast.walk(tree):
        if not isinstance(fn, ast.FunctionDef | ast.AsyncFunctionDef) or _is_contract(fn):
            continue
        given = [arg.arg for arg in (*fn.args.posonlyargs, *fn.args.args, *fn.args.kwonlyargs)]
        read = {
            n.id for part in fn.body for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        found += [f"{fn.name}:{name}" for name in given if name not in read and name not in {"self", "cls"}]
    return found


def _is_contract(fn: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Only a docstring, ``...`` or ``raise``: what others are to write."""
    return all(
        (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)) or isinstance(part, ast.Raise)
        for part in fn.body
    )


#: Where nobody outside gives arguments: what calls prescribes them.
_INSIDE = (
    "backends/cluster",
    "backends/tables",
    "admin",
    "migrations",
    "models",
    "core/determinism",
    "engine",
    "db",
    "liveness",
    "workers",
    "rest",
    "management",
    "checks.py",
    "contrib",
)


def test_no_function_takes_what_it_never_reads() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        where = str(path.relative_to(PACKAGE))
        if where.startswith(_INSIDE):
            continue
        if names := unread(ast.parse(path.read_text(encoding="utf-8"))):
            found[where] = names
    assert found == UNREAD


#: Hooks that users override, and functions whose parameters a contract or Python prescribes.
UNREAD: dict[str, list[str]] = {
    "access.py": [  # for hosts to override
        *("narrow:user", "startable:user", "stands_in_for:user", "may_delegate:task", "may_delegate:to"),
        *("mask:user", "mask:run"),
    ],
    # the default host of operations, and one that does all work itself
    "backends/host.py": ["engine:alias", "find_class:chain_id"],
    "operations/fleet/stats.py": [
        *("missing_worker:workflow", "missing_worker:version", "missing_worker:queue"),
        *("can_run_activity:activity", "can_run_activity:queue"),
    ],
    "operations/graph_runner.py": ["schedule_resume:step", "schedule_resume:delay"],  # refused, whatever is given
    "operations/runs/history_action.py": ["why_not:seq"],
    "operations/runs/control.py": ["parts:selection"],  # timers have no selectors
    "operations/human_tasks/operations.py": ["closed_error:error"],  # the row of the task says more
    # actions on activities and timers read them
    "operations/runs/operator_action.py": [
        "parts:selection",
        "parts:alias",
        "selector_options:runs",
        "selector_options:alias",
        "why_not:seq",
        "notice_of:run",
    ],
    "authoring/activity.py": [  # steps of graphs read them
        *(
            "decode_call:source",
            "encode_result:args",
            "encode_result:source",
            "encode_manual_result:args",
            "encode_manual_result:source",
            "parse_edited_input:args",
        ),
    ],
    # pages of other operations read them
    "console/run/events.py": ["form:run", "act:form"],
    "console/run/messages.py": ["get_success_url:request", "get_success_url:form"],
    "console/run/views.py": ["get_success_url:form"],
    "authoring/django_tasks.py": [
        "_accepts_count:count",
        "decode_call:source",
        "encode_result:args",
        "encode_result:source",
    ],
    "testing/activities.py": ["_call_in_scope:task"],  # the environment on a database reads it
    "testing/pytest_plugin.py": ["django_environment:db"],  # a fixture: to name it is enough
    "authoring/start_api.py": ["__set_name__:owner", "__get__:instance"],
    "authoring/workflow.py": [  # classes of processes read them
        *("_external_close_signals:status", "_external_close_signals:started_at", "_external_close_signals:ended_at"),
    ],
    "authoring/versions.py": ["version_for:versions", "version_for:options"],  # for users to override
    "core/pending_commands.py": ["resolve:_"],
    "core/executor.py": ["place_of:index"],
    "core/units/scheduler.py": ["on_close:_"],
    "core/units/branches.py": ["__aexit__:kind", "__aexit__:_"],
    "core/units/ivar.py": ["_track_collector:_"],
    "graph/durable_run.py": ["decode_call:kwargs"],
    "graph/local_runner.py": ["workflow:version", "instance:version", "change:now"],
    "graph/engine.py": ["fail_step:now"],  # as its siblings have it; an instance does not say when it failed
    "graph/standalone_engine.py": [  # signals are refused, whatever they are
        *("__exit__:kind", "__exit__:exc", "__exit__:tb", "signal_with_start:signal", "signal_with_start:payload"),
    ],
    "graph/steps.py": [
        *("execute:instance", "execute:config", "execute:context", "execute:config"),
        *(["execute:instance", "execute:config", "execute:context"] * 3),
    ],
    "graph/definition.py": ["__get__:instance", "__get__:owner"],
    "graph/context.py": ["__deepcopy__:memo", "__deepcopy__:memo"],
    "testing/assertions.py": [  # tests of what is waited for, called alike
        *(
            "_has_timer:description",
            "_can_take_update:waits",
            "_has_event:description",
            "_has_step:waits",
            "_has_activity:waits",
            "_has_child:description",
            "_has_human_task:description",
        ),
        "_has_deadline:description",
    ],
    "testing/environment_base.py": ["_breaks_transaction:error"],
    "testing/environment_host.py": ["in_transaction:alias"],
    "testing/database.py": ["_handle:workflow"],
    "testing/engine_environment.py": ["_attempt_savepoint:task"],
    "testing/memory_run_reads.py": ["run_id:by", "run_ids:by", "query:fresh", "_judge:message"],
    # commands that need neither, written by a table; the interface of the SDK; a clock that a test replaces
    "temporal/attempts.py": ["surroundings:activity"],  # for the attempts of a project to override
    "temporal/commands.py": [
        *("_write_marker:_", "_write_completion:_", "_write_run_failure:_"),
        *("_write_run_cancel:_attributes", "_write_run_cancel:_"),
    ],
    # the hooks of the base class do nothing
    "interceptors/__init__.py": [
        *("client_call:call", "activation:activation", "workflow_code:code", "activity_attempt:attempt", "query:query"),
    ],
    "temporal/instance.py": ["get_serialization_context:command_info", "get_external_store_context:command_info"],
    "temporal/run.py": ["now:inbound"],
    # runs in memory have one version, one thread and nothing unread
    "testing/memory_backend.py": ["get:version"],
}
