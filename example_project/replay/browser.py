"""A browser without a window: it keeps cookies, and fills in forms as the page has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from http.client import HTTPException
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, build_opener

from example_project.replay.rest import TIMEOUT, LostAnswer

_PROBLEM = re.compile(r'<(?:ul|p) class="error(?:list|note)[^"]*"[^>]*>(.*?)</(?:ul|p)>', re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


@dataclass(slots=True, kw_only=True)
class Form:
    """A form of a page: the address that it posts to, and the values of its fields."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page at ``url``, after all redirects."""

    url: str
    status: int
    html: str

    @property
    def problem(self) -> str:
        """The errors that the page shows at its fields, or else its status."""
        texts = [" ".join(unescape(_TAG.sub(" ", text)).split()) for text in _PROBLEM.findall(self.html)]
        return " ".join(texts) or f"status {self.status}"

    def form(self, name: str) -> Form:
        """Return the form that has the field ``name``, or whose address ends with it. Raises ``LookupError``."""
        parser = _FormParser()
        parser.feed(self.html)
        for form in parser.forms:
            if name in form.fields or form.action.endswith(name):
                return Form(action=urljoin(self.url, form.action), fields=form.fields)
        message = f"{self.url} has no form {name!r}: {self.problem}"
        raise LookupError(message)


class Browser:
    """The browser of one person. Not for several threads at once."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def open(self, path: str) -> Page:
        """Open a page. Raises ``LostAnswer``."""
        return self._load(urljoin(self._base_url, path), None)

    def submit(self, form: Form, **values: str) -> Page:
        """Post a form, with ``values`` in place of those that its page has. Raises ``LostAnswer``."""
        return self._load(form.action, urlencode(form.fields | values).encode())

    def _load(self, url: str, content: bytes | None) -> Page:
        try:
            try:
                response: Any = self._opener.open(url, content, timeout=TIMEOUT)
            except HTTPError as error:
                response = error  # a page as well
            with response:
                return Page(url=response.geturl(), status=response.status, html=response.read().decode())
        except (OSError, HTTPException) as error:
            message = f"{url}: {type(error).__name__} {error}"
            raise LostAnswer(message) from error


class _FormParser(HTMLParser):
    """The forms of a page, with the values that a browser would post without a button."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._select = ""
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(action=values.get("action", "")))
        if not self.forms:
            return
        fields, name = self.forms[-1].fields, values.get("name", "")
        match tag:
            case "input" if name and values.get("type") not in ("submit", "button", "file"):
                if values.get("type") not in ("checkbox", "radio") or "checked" in values:
                    fields[name] = values.get("value", "")
            case "select":
                self._select = name
            case "option" if self._select and ("selected" in values or self._select not in fields):
                fields[self._select] = values.get("value", "")
            case "textarea":
                self._text = name
                fields[name] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""
        if tag == "textarea":
            self._text = ""

    def handle_data(self, data: str) -> None:
        if self._text and self.forms:
            self.forms[-1].fields[self._text] += data
