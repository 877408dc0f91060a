"""Times, spans, lists and names, in the language and the zone of whoever reads them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import formats, timezone
from django.utils.translation import gettext as _

_SHORT = 140
_BORDERS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def spelt(name: str) -> str:
    """A name of code as words: ``shop.orders.charge_card`` → charge card, ``OrderProcess`` → order process."""
    last = name.rsplit(".", 1)[-1]
    words = _BORDERS.sub(" ", last).replace("_", " ").replace("-", " ").split()
    return " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in words) or name


def titled(declared: object, documented: Any, name: str) -> str:
    """What people call a thing: what it declares, else the first line of its docstring, else its name as words."""
    if declared:
        return str(declared)
    text = inspect.cleandoc(documented) if isinstance(documented, str) else ""
    first = text.partition("\n")[0].strip().rstrip(".")
    return first or spelt(name)


def when(at: datetime, now: datetime) -> str:
    """A time as one says it today: the hour, yesterday or tomorrow, the day of the week, or the date."""
    local, today = timezone.localtime(at), timezone.localtime(now)
    hour = formats.time_format(local, "H:i")
    days = (local.date() - today.date()).days
    if days == 0:
        return hour
    if days == 1:
        return _("tomorrow %(hour)s") % {"hour": hour}
    if days == -1:
        return _("yesterday %(hour)s") % {"hour": hour}
    if 1 < abs(days) < 7:
        return _("%(day)s %(hour)s") % {"day": formats.date_format(local, "l"), "hour": hour}
    known = "j M" if local.year == today.year else "j M Y"
    return _("%(date)s %(hour)s") % {"date": formats.date_format(local, known), "hour": hour}


def span(length: timedelta | float) -> str:
    """A length of time in its two largest units: 2 d 3 h."""
    seconds = max(0, int(length.total_seconds() if isinstance(length, timedelta) else length))
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    if days:
        return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours} if hours else _("%d d") % days
    if hours:
        found = _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes}
        return found if minutes and hours < 3 else _("%d h") % hours
    if minutes:
        found = _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": left}
        return found if left and minutes < 3 else _("%d min") % minutes
    return _("%d s") % left


def any_of(names: Sequence[str]) -> str:
    """Titles as an enumeration of which one is enough."""
    if len(names) < 2:
        return "".join(names)
    return _("%(first)s or %(last)s") % {"first": _comma().join(names[:-1]), "last": names[-1]}


def all_of(names: Sequence[str]) -> str:
    """Titles as an enumeration of which all are meant."""
    if len(names) < 2:
        return "".join(names)
    return _("%(first)s and %(last)s") % {"first": _comma().join(names[:-1]), "last": names[-1]}


def _comma() -> str:
    return _(", ")


def whole(text: str) -> str:
    """A sentence begins with a capital."""
    return text[:1].upper() + text[1:]


def shortened(text: str, most: int = _SHORT) -> str:
    """For a row of a list: cut between words."""
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    head, space, _rest = cut.rpartition(" ")
    return (head if space and len(head) > most // 2 else cut).rstrip(" ,;:") + "…"
