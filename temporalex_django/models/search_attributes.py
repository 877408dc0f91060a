"""The table of search attributes: typed values of runs, as rows, so that an index can find them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.core.payloads.search_attributes import MAX_FRACTION_DIGITS, MAX_INTEGER_DIGITS, MAX_TEXT_LENGTH
from temporalex_django.models.fields import SafeDateTimeField, unconstrained_key


class SearchAttribute(models.Model):
    """A search attribute of a run, with its value in the column of its type.

    Turns write these rows when a workflow sets an attribute. The row of the run has a copy for display only. Turns
    rewrite that row, so it has no index on the attributes. An attribute that is a list has one row for each text,
    numbered by ``place``.
    """

    pk = models.CompositePrimaryKey("run_id", "name", "place")
    run = unconstrained_key("temporalex_django.Instance", related_name="searched")
    workflow = models.CharField(max_length=200)
    name = models.CharField(max_length=100)
    place = models.SmallIntegerField(db_default=0)
    text = models.CharField(max_length=MAX_TEXT_LENGTH, null=True)  # noqa: DJ001 - no text is not an empty text
    number = models.DecimalField(
        max_digits=MAX_INTEGER_DIGITS + MAX_FRACTION_DIGITS, decimal_places=MAX_FRACTION_DIGITS, null=True
    )
    moment = SafeDateTimeField(null=True)

    class Meta:
        db_table = "temporalex_search_attribute"
        verbose_name = _("search attribute")
        verbose_name_plural = _("search attributes")
        ordering = ["run_id", "name", "place"]
        default_permissions = ()
        # One partial index for each type: a value is in one column, and the other two are NULL.
        indexes = [
            # Serves searches by the beginning of a text, too.
            models.Index(
                fields=["workflow", "name", "text", "run"],
                name="temporalex_search_text",
                opclasses=["text_ops", "text_ops", "varchar_pattern_ops", "uuid_ops"],
                condition=Q(text__isnull=False),
            ),
            models.Index(
                fields=["workflow", "name", "number", "run"],
                name="temporalex_search_number",
                condition=Q(number__isnull=False),
            ),
            models.Index(
                fields=["workflow", "name", "moment", "run"],
                name="temporalex_search_moment",
                condition=Q(moment__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.run_id}"
