"""Times, durations, lists and names in the reader's language and time zone."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

_SHORT_LENGTH = 140
_ISO_TIMES = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?")
_WORD_BORDERS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def humanize_name(name: str) -> str:
    """Return a name of the code as words.

    ``shop.orders.charge_card`` becomes "charge card", and ``OrderProcess`` becomes "order process".
    """
    last_part = name.rsplit(".", 1)[-1]
    words = _WORD_BORDERS.sub(" ", last_part).replace("_", " ").replace("-", " ").split()
    # Abbreviations such as HTTP stay in upper case; a single letter is none.
    return " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in words) or name


def display_title(declared_title: object, docstring: Any, name: str) -> str:
    """Return the title of a class, activity or step for people.

    This is the title that its code declares, or the first line of its docstring, or ``name``, its name in the code, as
    words.
    """
    if declared_title:
        return str(declared_title)
    text = ""
    if isinstance(docstring, str):
        text = inspect.cleandoc(docstring)
    first_line = text.partition("\n")[0].strip().rstrip(".")
    return first_line or humanize_name(name)


def format_time(at: datetime, now: datetime) -> str:
    """Return the time ``at`` as people say it at ``now``, in the current time zone.

    For a time of today it is the hour, and for yesterday and tomorrow that word with the hour. Within six days it is
    the day of the week with the hour, and otherwise the date with the hour.
    """
    # Days are counted by the calendar of the reader's zone, so that yesterday means the same as in speech.
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
    return _("%(date)s %(hour)s") % {"date": _format_date(local, today), "hour": hour}


def format_exact_time(at: datetime) -> str:
    """Return the date and the time with seconds, in the current time zone, such as 3 Nov 2026 14:02:31."""
    local = timezone.localtime(at)
    return f"{formats.date_format(local, 'j M Y')} {formats.time_format(local, 'H:i:s')}"


def format_time_html(at: datetime, now: datetime) -> SafeString:
    """Return a time as HTML: the text of ``format_time``, with the exact time on hover."""
    return format_html(
        '<time class="tx-moment" datetime="{}" title="{}">{}</time>',
        timezone.localtime(at).isoformat(),
        format_exact_time(at),
        format_time(at, now),
    )


def localize_times(text: str, now: datetime) -> str:
    """Return ``text`` with each time in it as ``format_time`` writes it; a time without a zone is in UTC.

    The engine names timers by their time: ``timer 2026-11-03T14:02:00+00:00``.
    """

    def localized(match: re.Match[str]) -> str:
        try:
            at = datetime.fromisoformat(match[0])
        except ValueError:
            return match[0]
        return format_time(at if at.tzinfo else at.replace(tzinfo=UTC), now)

    return _ISO_TIMES.sub(localized, text)


def _format_date(local: datetime, today: datetime) -> str:
    """Return the date, without the year if it is the year of ``today``."""
    if local.year == today.year:
        return formats.date_format(local, "j M")
    return formats.date_format(local, "j M Y")


def format_at(at: datetime, now: datetime) -> str:
    """Return a time for use after a verb: *at 14:02*, or *tomorrow at 14:02*, seen from ``now``."""
    local, today = timezone.localtime(at), timezone.localtime(now)
    words = {"hour": formats.time_format(local, "H:i"), "day": formats.date_format(local, "l")}
    days = (local.date() - today.date()).days
    if days == 0:
        return _("at %(hour)s") % words
    if days == 1:
        return _("tomorrow at %(hour)s") % words
    if days == -1:
        return _("yesterday at %(hour)s") % words
    if 1 < abs(days) < 7:
        return _("on %(day)s at %(hour)s") % words
    date = _format_date(local, today)
    return _("on %(date)s at %(hour)s") % {**words, "date": date}


def format_duration(length: timedelta | float) -> str:
    """Format a duration in its two largest units, such as 2 d 3 h; a float is in seconds."""
    seconds = max(0, int(length.total_seconds() if isinstance(length, timedelta) else length))
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest_seconds = divmod(rest, 60)
    if days:
        if hours:
            return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours}
        return _("%d d") % days
    if hours:
        # From three hours on, the minutes are noise.
        text = _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes}
        if minutes and hours < 3:
            return text
        return _("%d h") % hours
    if minutes:
        # From three minutes on, the seconds are noise.
        text = _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": rest_seconds}
        if rest_seconds and minutes < 3:
            return text
        return _("%d min") % minutes
    return _("%d s") % rest_seconds


def join_with_or(names: Sequence[str]) -> str:
    """Join names with commas and "or", for a text in which one of them is enough."""
    if len(names) < 2:
        return "".join(names)
    return _("%(first)s or %(last)s") % {"first": _separator().join(names[:-1]), "last": names[-1]}


def join_with_and(names: Sequence[str]) -> str:
    """Join names with commas and "and", for a text in which all of them are meant."""
    if len(names) < 2:
        return "".join(names)
    return _("%(first)s and %(last)s") % {"first": _separator().join(names[:-1]), "last": names[-1]}


def _separator() -> str:
    # Translated: not every language separates with a comma.
    return _(", ")


def capitalize(text: str) -> str:
    """Return the text with its first letter in upper case.

    Unlike ``str.capitalize`` it leaves the other letters as they are.
    """
    return text[:1].upper() + text[1:]


def shorten(text: str, max_length: int = _SHORT_LENGTH) -> str:
    """Cut a text to ``max_length`` characters between two words, and end it with an ellipsis if something was cut."""
    if len(text) <= max_length:
        return text
    cut = text[: max_length - 1]
    # A single long word is cut inside, because cutting before it would leave almost nothing.
    head, space, _rest = cut.rpartition(" ")
    return (head if space and len(head) > max_length // 2 else cut).rstrip(" ,;:") + "…"
