"""Chains: one narrow row per business execution, rewritten by every turn."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.core.names import TABLES
from temporalex_django.models.fields import SafeDateTimeField, unconstrained_key

#: Kinds of waits that have a column ``awaits_…``. The other kind is ``activity``.
AWAITED_KINDS = ("message", "timer", "child")


class Chain(models.Model):
    """Runs that follow each other under one id, by continue-as-new, a move or a reset.

    The process that holds the lock of this row is the only one that may advance the run. Every turn (the transaction
    that advances runs) rewrites the row, so it is narrow (fill factor 70, and only partial indexes besides the key).
    See decision 7.
    """

    id = models.UUIDField(primary_key=True)
    backend = models.TextField(
        db_default=TABLES, help_text=_("Where its runs are stored: in these tables or on a Temporal cluster.")
    )
    run = unconstrained_key("temporalex_django.Instance", related_name="current_of", help_text=_("The current run."))
    queue = models.TextField(help_text=_("The workers that poll this queue may advance it."))
    due_at = SafeDateTimeField(
        null=True, help_text=_("It is not advanced before this time. Empty if it is waiting for a message.")
    )
    deadline = SafeDateTimeField(null=True, help_text=_("When the run times out."))
    # An executor in memory is current only if it has this token (see decision 5). A rollback leaves the old token, so
    # no hook has to discard the executor.
    head_token = models.BigIntegerField(null=True, help_text=_("Token of the last activation that wrote."))
    length = models.IntegerField(db_default=0, help_text=_("Events in the history of the current run."))
    activations = models.IntegerField(db_default=0)
    activated_at = SafeDateTimeField(null=True, help_text=_("When the last activation ran. This time never goes back."))
    failed_tries = models.IntegerField(
        db_default=0, help_text=_("Consecutive failed attempts of the current activation.")
    )
    crashes = models.SmallIntegerField(
        db_default=0, help_text=_("Number of consecutive processes that died while they ran its code.")
    )
    atomic_due = SafeDateTimeField(null=True, help_text=_("When its next atomic activity is due."))
    closed = models.BooleanField(db_default=False)
    paused = models.BooleanField(db_default=False)
    # What the run may wait for, so that lists find it by an index. ``waiting_for`` of the run decides. An update that
    # would stay on its page removes no mark, so a mark may be older than the activity for which the run waits now.
    awaits_message = models.BooleanField(
        db_default=False, help_text=_("The open run may wait for a message or a decision.")
    )
    awaits_timer = models.BooleanField(db_default=False, help_text=_("The open run may wait for a timer."))
    awaits_child = models.BooleanField(db_default=False, help_text=_("The open run may wait for another run."))
    open_key = models.TextField(  # noqa: DJ001 - NULLs do not collide
        null=True, help_text=_("Keeps the id unique among open runs; empty when closed.")
    )

    cluster_first_run_id = models.UUIDField(
        null=True, help_text=_("The id of its first run on its Temporal cluster, once that has begun.")
    )

    class Meta:
        db_table = "temporalex_chain"
        verbose_name = _("chain")
        verbose_name_plural = _("chains")
        default_permissions = ("view",)
        indexes = [
            # Partial, so that parked runs, which wait for a message only, cost a claim nothing.
            models.Index(fields=["queue", "due_at"], name="temporalex_chain_due", condition=Q(due_at__isnull=False)),
            # In the order of a list. A run that only calls activities is in none of these indexes.
            *(
                models.Index(fields=["run"], name=f"temporalex_chain_{kind}", condition=Q(**{f"awaits_{kind}": True}))
                for kind in AWAITED_KINDS
            ),
        ]
        constraints = [
            # No turn, timeout or atomic activity of a worker may take a run that lives on a cluster.
            models.CheckConstraint(
                name="temporalex_chain_on_cluster",
                condition=Q(backend=TABLES)
                | Q(due_at__isnull=True, deadline__isnull=True, atomic_due__isnull=True, head_token__isnull=True),
            ),
            models.UniqueConstraint(
                fields=["open_key"], name="temporalex_chain_open_key", condition=Q(open_key__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)
