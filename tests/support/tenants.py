"""Two tenants in one database: a run belongs to the tenant that its id begins with."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from temporalex_django.access import AccessPolicy, Operation
from temporalex_django.models import Instance

POLICY = f"{__name__}.Tenants"


class Tenants(AccessPolicy):
    """A user sees the runs of the tenant that he is named after: ``red-ann`` those whose id begins with ``red-``."""

    def narrow(self, user: Any, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        return runs.filter(workflow_id__startswith=user.username.partition("-")[0] + "-")


class Careful(AccessPolicy):
    """Decides by run and by message."""

    def allows(self, user: Any, operation: Operation) -> bool:
        if operation.run is not None and operation.action == "signal":
            return operation.run.workflow_id != "b-closed-shop" and operation.message != "checkout"
        return super().allows(user, operation)


class Unsigned(AccessPolicy):
    """Lets nobody send signals."""

    def allows(self, user: Any, operation: Operation) -> bool:
        return operation.action != "signal" and super().allows(user, operation)


class Unmasked(AccessPolicy):
    """Cannot mask."""

    def mask(self, user: Any, run: Instance, value: Any) -> Any:
        raise LookupError(str(value))


class Firsts(AccessPolicy):
    """Allows nothing of one run."""

    hidden = ""

    def allows(self, user: Any, operation: Operation) -> bool:
        return (operation.run is None or str(operation.run.pk) != self.hidden) and super().allows(user, operation)


class Masking(AccessPolicy):
    """Leaves nothing of numbers."""

    def mask(self, user: Any, run: Instance, value: Any) -> Any:
        return "***"


class Broken(AccessPolicy):
    """Raises whatever it is asked."""

    def narrow(self, user: Any, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        raise RuntimeError("the directory is away")


class Careless(AccessPolicy):
    """Gives what is no queryset of runs."""

    def narrow(self, user: Any, runs: Any) -> Any:
        return list(runs)
