"""What programs and schedules are generated from.

Weights are chosen so that each construct is run by one program in sixty, and most by one in twenty (``counts.py``).
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c")


def step(kind: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(kind), *arguments)


def one(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """As one alternative among others: ``one_of`` would count each of its own as such."""
    return strategy.map(lambda drawn: drawn)


name = st.sampled_from(NAMES)
seconds = st.integers(1, 6)
limit = st.sampled_from([None, None, 1, 2])
#: An instant, so many seconds after the call: it may have passed.
instant = step("until", st.integers(-1, 6))
#: When a wait ends: a duration, an instant, or never.
within = st.one_of(st.none(), seconds, st.integers(-1, 8), instant)
simple = one(
    st.one_of(
        step("activity", st.sampled_from(["work", "work", "other"])),
        step("activity", st.sampled_from(["work", "other"])),
        step("local"),
        *[step("failing")] * 2,
        # the same strategy twice counts once
        *[step("hasty", st.integers(1, 2)) for _ in range(2)],
        step("sleep", st.integers(0, 5)),
        step("sleep until", st.integers(-1, 5)),
        step("wait", st.sampled_from([*NAMES, *NAMES, "told"])),
        step("draw"),
        *[step("headers") for _ in range(2)],
        step("set", st.integers(1, 4)),
        *[step("forgotten", st.sampled_from(["used", "dropped", "held"])) for _ in range(2)],
        step("patch", name),
        step("deprecate", name),
        step("publish"),
        step("precise", st.integers(2, 5), st.integers(0, 3)),
        step("generator"),
        step("lock", st.integers(0, 2), seconds),
        step("approval", st.sampled_from([1, 2, 3, 4, None]), st.sampled_from([None, 2, 3])),
        step("approval", within, st.sampled_from([None, 2, 3])),
        step("condition", st.integers(0, 8), within),
        step("until cancelled", seconds),
        step("tell", st.sampled_from(["kid", "nobody"]), st.sampled_from([*NAMES, "cancel", "cancel"])),
        # no signal that starts this over again: a run that keeps itself busy never comes to a wait
        step("tell", st.just("program"), st.sampled_from(["told", "cancel"])),
    )
)
#: Where a primitive is refused, or raises, it is the unit's affair: so these may stand in branches, handlers and
#: children.
inner = one(
    st.one_of(
        *[simple] * 6,
        step("update_state"),
        *[step("condition of state", st.integers(0, 3), st.one_of(seconds, instant)) for _ in range(2)],
        step("raise"),
    )
)


def blocks(body: st.SearchStrategy[Any]) -> list[st.SearchStrategy[Any]]:
    return [
        step("parallel", st.lists(body, max_size=3), limit),
        step("race", st.lists(body, min_size=1, max_size=3)),
        step("shield", body),
        *[step("saga", body, st.booleans()) for _ in range(2)],
    ]


short = st.lists(inner, min_size=1, max_size=3)
nested = st.lists(st.one_of(*[inner] * 4, *blocks(short)), min_size=1, max_size=3)


def child(policy: str) -> st.SearchStrategy[Any]:
    return step(
        "child",
        st.lists(st.one_of(*[simple] * 6, *blocks(short)), min_size=1, max_size=3),
        st.just(policy),
        st.sampled_from([None, "kid", "kid", "kid"]),
        st.sampled_from(["ok", "obey", "raise", "raise", "raise", "again"]),
        # seconds until it begins, and the limit of that wait
        st.sampled_from([*[None] * 4, [2, None], [3, 2]]),
    )


#: A strategy of its own for each: the same one twice counts once.
children = [child(policy) for policy in ("terminate", "abandon", "request_cancel")]
body = st.one_of(short, nested, st.lists(st.one_of(*children, inner), min_size=1, max_size=2))
handler = st.fixed_dictionaries(
    {
        "how": st.sampled_from(["plain", "sync", "async", "raising", "shapeless"]),
        "body": body,
        "stop": st.booleans(),
        "picky": st.sampled_from([True, True, False, "faulty", "faulty"]),
    }
)
phase = step("phase", st.dictionaries(name, handler, min_size=3), within)
#: A child that takes some signals only, and one for it.
strict = step(
    "strict",
    st.builds(lambda *steps: list(steps), step("wait", st.sampled_from("bca")), simple, step("wait", name)),
    st.sampled_from("bca"),
)
first = st.one_of(*blocks(body), *children, strict)
outer = one(st.one_of(*blocks(body), *children, simple, strict))
program = st.fixed_dictionaries(
    {
        "steps": st.builds(
            lambda block, opened, swap, after: [*([opened, block] if swap else [block, opened]), *after],
            first,
            phase,
            st.booleans(),
            st.lists(st.one_of(outer, outer, phase), min_size=1, max_size=5),
        ),
        "end": st.sampled_from(["ok", "ok", "again", "again", "obey", "obey", "obey", "err", "raise"]),
        # seconds until the run begins, and the limit of that wait
        "begins": st.sampled_from([*[None] * 14, [2, None], [1, 4]]),
        "headers": st.sampled_from([None, None, {"of": "start"}]),
    }
)

#: Programs whose run is the only one, and what may wait for it without telling it that it waited.
alone = st.fixed_dictionaries(
    {
        "steps": st.lists(st.one_of(*blocks(st.one_of(short, nested)), phase, simple), min_size=2, max_size=6),
        "end": st.sampled_from(["ok", "again", "obey", "err"]),
    }
)
waiting = st.lists(
    one(
        st.one_of(
            *[step("signal", st.sampled_from([*NAMES, "stop"]))] * 2,
            step("complete", st.integers(0, 3)),
            step("fail", st.integers(0, 3)),
            step("skip", st.integers(0, 3)),
            step("by hand", st.integers(0, 3)),
            step("fail by hand", st.integers(0, 3)),
        )
    ),
    min_size=1,
    max_size=6,
)

#: Which of the calls that are open, counted round.
which = st.integers(0, 3)
event = one(
    st.one_of(
        step("signal", st.sampled_from([*NAMES, *NAMES, "stop"])),
        *[step("update", st.sampled_from([f"u{n}" for n in NAMES])) for _ in range(2)],
        step("signal with headers", st.sampled_from([*NAMES, "stop"])),
        step("update with headers", st.sampled_from([f"u{n}" for n in NAMES])),
        *[step("complete", which)] * 3,
        step("decide", which, st.sampled_from(["approved", "rejected"])),
        step("fail", which),
        step("advance", seconds),
        step("kid", name),
        step("strict", st.sampled_from("bca")),
    )
)
#: What somebody does to the run of the program, or to the child that has ended.
operation = one(
    st.one_of(
        *[step("outage", seconds) for _ in range(2)],
        step("pause"),
        step("unpause"),
        *[step("skip", which)] * 2,
        *[step("by hand", which) for _ in range(3)],
        *[step("fail by hand", which) for _ in range(4)],
        *[step("stumble", which) for _ in range(4)],
        *[step("retry", which) for _ in range(6)],
        step("edit", which),
        step("redeliver", which),
        *[step("discard", which) for _ in range(5)],
        *[step("delete", which)] * 3,
    )
)
batch = step("batch", st.lists(st.one_of(*[event] * 4, operation), min_size=2, max_size=5))
#: Brings most programs to their end: whatever they wait for comes.
FINISH = [
    ("unpause",),
    ("strict", "b"),
    ("edit", 0),
    ("redeliver", 0),
    *[("complete", 0)] * 4,
    *[("signal", n) for n in NAMES],
    *[("update", f"u{n}") for n in NAMES],
    *[("kid", n) for n in NAMES],
    ("strict", "a"),
    *[("decide", 0, "approved")] * 2,
    *[("complete", 0)] * 4,
    *[("update", f"u{n}") for n in NAMES],
    ("signal", "stop"),
    ("advance", 9),
    ("delete", 0),
]


def _with(events: list[Any], ending: str, at: int, times: int) -> list[Any]:
    whole = [*events, *FINISH * times]
    return whole if ending == "none" else [*whole[: at % len(whole)], (ending,), *whole[at % len(whole) :]]


schedule = st.builds(
    _with,
    st.lists(st.one_of(event, event, event, operation, operation, batch), min_size=8, max_size=26),
    st.sampled_from([*["none"] * 9, *["cancel"] * 9, *["terminate"] * 5]),
    st.integers(0, 60),
    st.sampled_from([0, 1, 3, 3, 3]),
)

#: Limits of hosts that a run may be driven under.
limits = st.sampled_from(
    [{}, {}, {"admit_updates": True}, {"max_pending": 2}, {"admit_updates": True, "max_pending": 1}]
)

#: Branches whose steps only wait for activities of their own, and an order in which these end: ``(branch, fails)``.
SLOTS = 5
independent = st.lists(
    st.lists(st.sampled_from(["slot", "slot", "local", "shield", "race"]), min_size=1, max_size=3),
    min_size=2,
    max_size=SLOTS,
)
