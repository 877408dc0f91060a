"""Money as text in messages and as whole cents in sums: exact, and plain JSON."""

from __future__ import annotations

import re

AMOUNT = re.compile(r"(\d{1,9})\.(\d{2})", re.ASCII)


def cents(amount: str) -> int:
    """Read "9.99". Raises ValueError for anything else: signs, exponents, more or fewer digits."""
    found = AMOUNT.fullmatch(amount)
    if found is None:
        message = f"{amount!r} is not an amount like 9.99"
        raise ValueError(message)
    return int(found[1]) * 100 + int(found[2])


def amount(cents: int) -> str:
    """Write 999 as "9.99"."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"
