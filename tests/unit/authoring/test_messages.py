"""What the source of a class says about its messages."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from temporalex_django import NoReply, Ok, Reply, Stop, Workflow, api, signal, update
from temporalex_django.authoring.declared_messages import DeclaredMessage, messages_of


@dataclass
class Item:
    sku: str


def put(args: Item, state: Any) -> Reply:
    """Put it in."""
    return Reply(None, state)


def step(by: int, args: float, state: Any) -> NoReply:
    return NoReply(state)


KEPT = {"kept": update(put, permission="shop.put"), "typed": lambda args, state: Stop(state)}


async def second(more: Any) -> Any:
    return await api.phase(None, signal={"elsewhere": partial(step, 1), **more})


class Many(Workflow):
    name = "test.ManyMessages"

    def own(self, args: int | None, state: Any) -> Reply:
        return Reply(args, state)

    @staticmethod
    def plain(args: list[Item], state: Any) -> Reply:
        return Reply(args, state)

    async def run(self, args: Any) -> Any:
        def nested(args: dict[str, int], state: Any) -> NoReply:
            """Said here."""
            return NoReply(state)

        built = {f"made-{n}": put for n in range(3)}
        handlers = {"named": nested}
        await api.phase(
            None,
            handlers,
            {
                "put": put,
                "own": self.own,
                "plain": self.plain,
                "guarded": update(nested, permission="shop.guard"),
                "end": lambda args, state: Stop(state),
                **KEPT,
            },
        )
        await api.phase(None, signal=built, update={"again": signal(put)})
        await api.wait_for_signal("outside")
        await second({})
        return Ok(None)


def test_what_the_source_says_plainly_is_known() -> None:
    found = messages_of(Many)

    assert found["update", "put"] == DeclaredMessage(kind="update", name="put", args_type=Item, about="Put it in.")
    assert {(kind, name): m.args_type for (kind, name), m in found.items()} == {
        ("signal", "named"): dict[str, int],
        ("update", "put"): Item,
        ("update", "own"): int | None,
        ("update", "plain"): list[Item],
        ("update", "guarded"): dict[str, int],
        ("update", "end"): Any,
        ("update", "kept"): Item,
        ("update", "typed"): Any,
        ("update", "again"): Item,
        ("signal", "outside"): Any,
        ("signal", "elsewhere"): float,
    }
    assert {m.name: m.permission for m in found.values() if m.permission} == {
        "guarded": "shop.guard", "kept": "shop.put",
    }  # fmt: skip
    assert found["signal", "named"].about == "Said here."


def test_a_class_without_source_has_no_messages() -> None:
    text = (
        "class Typed(Workflow):\n    name = 'test.NoSource'\n    async def run(self, args):\n        await api.phase(0)"
    )
    scope: dict[str, Any] = {"Workflow": Workflow, "api": api, "__name__": "nowhere"}
    exec(text, scope)

    assert messages_of(scope["Typed"]) == {}


@pytest.mark.parametrize("annotation", ["undefined", "5", "list[undefined]", "1 | 2", "(lambda: int)()"])
def test_nonsense_in_annotations_is_any(annotation: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"odd_{abs(hash(annotation))}"
    (tmp_path / f"{name}.py").write_text(
        "from __future__ import annotations\n"
        "from temporalex_django import Workflow, api\n"
        f"class Odd(Workflow):\n    name = 'test.{name}'\n"
        "    async def run(self, args):\n"
        f"        def odd(args: {annotation}, state): ...\n"
        "        await api.phase(0, update={'odd': odd})\n"
    )
    odd = __import__(name).Odd

    assert messages_of(odd)["update", "odd"].args_type in (Any, 5)


SOURCE = """from temporalex_django import Ok, Workflow, api


class Changed(Workflow):
    name = "test.ChangedSince"

    async def run(self, args):
        return Ok(await api.wait_for_signal("go"))
"""


def test_a_module_whose_file_has_changed_since_its_import_declares_nothing(tmp_path: Path) -> None:
    """A deploy replaces the files of a process that runs, and a line may end inside of a text."""
    path = tmp_path / "changed_since.py"
    path.write_text(SOURCE)
    scope: dict[str, Any] = {"__name__": "changed_since", "__file__": str(path)}
    exec(compile(SOURCE, str(path), "exec"), scope)
    path.write_text("\n" * 6 + "    these are people's words,\n    (and the end isn't there\n")
    linecache.checkcache(str(path))

    assert messages_of(scope["Changed"]) == {}
