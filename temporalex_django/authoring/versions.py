"""``VersionedWorkflow``: one name for several classes; each run stays with the class that it was started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from temporalex_django.authoring import backend, definition
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core import names
from temporalex_django.errors import UnknownVersion, WorkflowDefinitionError

if TYPE_CHECKING:
    from temporalex_django.core.results import Ok


class VersionedWorkflow(Startable):
    """A dispatcher over versions of a workflow: ``versions = {1: First, 2: Second}``, ``current = 2``.

    A start runs the version that the caller names, else the one that ``version_for`` chooses, else ``current``, which
    is read at each start. A run continues with the class of its version as long as ``versions`` has it. Runs whose
    version is missing are blocked with that reason; a start does not affect them. The classes keep their places and
    names in the code; in the database all of them have the dispatcher's ``name``.
    """

    versions: ClassVar[Mapping[int, type[Workflow]]] = {}
    current: ClassVar[int]
    #: The search attributes of all versions together.
    search_attributes: ClassVar[Mapping[str, Any]] = {}
    defined_as: ClassVar[int] = 0

    if TYPE_CHECKING:

        async def run(self, args: Any, /) -> Ok[Any]:
            """Declare ``run`` for type checkers only. The input and the result of a run depend on its version."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        if problems := _problems(cls):
            raise WorkflowDefinitionError(f"versioned workflow {cls.__qualname__}: " + "; ".join(problems))
        # All versions have the same `unique`: `_problems` refuses others, since a value has to mean one run.
        cls.unique = next(iter(cls.versions.values())).unique
        for version in cls.versions.values():
            workflows.adopt(version, cls)
            cls.search_attributes = {**cls.search_attributes, **version.search_attributes}
        workflows.register(cls)

    @classmethod
    def is_versioned(cls) -> bool:
        """Return True: this class is a dispatcher."""
        return True

    @classmethod
    def require_registered(cls) -> None:
        """Raise ``WorkflowDefinitionError`` if another class has been defined under its name since."""
        definition.require_same_class(cls, workflows.registry.get(cls.name))

    @classmethod
    def version_for(cls, versions: Mapping[int, type[Workflow]], options: Mapping[str, Any]) -> int | None:
        """Return the version to start, or None for ``current``.

        Override it to choose a version. ``versions`` are the classes by version, and ``options`` the further options of
        the start.
        """
        del versions, options
        return None

    @classmethod
    def handle(cls, id: str) -> Any:
        """Return the handle of the newest chain with the business id ``id``, of any version."""
        return backend.backend(cls).handle(id, workflow=cls)

    @classmethod
    def resolve_version(cls, version: int | None = None, **options: Any) -> tuple[int, type[Workflow]]:
        """Return ``(number, class)`` of the version that a start would run.

        It is ``version``, else the one that ``version_for`` chooses by ``options``, else ``current``. Raises
        ``UnknownVersion``.
        """
        if version is None:
            version = cls.version_for(dict(cls.versions), options)
        if version is None:
            version = cls.current
        # `type`, not `isinstance`: True equals 1 as a key, and would start version 1.
        workflow_class = cls.versions.get(version) if type(version) is int else None
        if workflow_class is None:
            version_numbers = ", ".join(str(number) for number in sorted(cls.versions))
            raise UnknownVersion(f"{cls.name} has no version {version!r} (it has: {version_numbers})")
        return version, workflow_class


def _problems(cls: type[VersionedWorkflow]) -> list[str]:
    problems: list[str] = []
    versions = cls.versions
    if "version" in cls.__dict__:
        problems.append("it has `versions`: remove its own `version`")
    problems += [
        f"{name} has no effect on a dispatcher: set it on each of the versions"
        for name in ("internal", "start_permission", "redacted", "search_attributes")
        if name in cls.__dict__
    ]
    if not names.is_name(cls.name) or cls.name.startswith("__"):
        problems.append(
            f"name {names.quoted(cls.name)} must be a string of 1 to 200 printable characters that does not begin with '__'"
        )
    if not isinstance(versions, Mapping) or not versions:
        return [*problems, f"versions must be a mapping of version numbers to workflow classes, not {versions!r}"]
    for number, version in versions.items():
        problems.extend(_version_problems(cls, number, version))
    classes = [version for version in versions.values() if isinstance(version, type) and issubclass(version, Workflow)]
    problems += _conflicts(classes)
    if not hasattr(cls, "current"):
        problems.append("`current` is missing: set it to the version of new runs")
    elif type(cls.current) is not int or cls.current not in versions:
        problems.append(f"current {cls.current!r} is not in versions")
    return problems


def _conflicts(classes: Sequence[type[Workflow]]) -> Iterator[str]:
    """Yield a sentence for each contradiction between versions."""
    if len({version.unique for version in classes}) > 1:
        yield "its versions differ in `unique`: a value must mean the same in all of them"
    # Runs of all versions are in the same tables, so none may store as plain text what another redacts.
    redacted = {path for version in classes for path in version.redacted}
    types: dict[str, Any] = {}
    for version in classes:
        for name in version.stored:
            if name in redacted:
                yield f"{version.__name__} stores {name}, which one of the versions redacts: SQL would show it"
        for name, kind in version.search_attributes.items():
            if name in redacted:
                yield f"{version.__name__} has the search attribute {name}, which one of the versions redacts: a search would show it"
            if types.setdefault(name, kind) != kind:
                yield f"its versions declare the search attribute {name} with different types: no query could compare them"


def _version_problems(cls: type[VersionedWorkflow], number: Any, version: Any) -> Iterator[str]:
    if type(number) is not int or number < 1:
        yield f"the version {number!r} must be a whole number of 1 or more"
    if not (isinstance(version, type) and issubclass(version, Workflow) and "definition" in vars(version)):
        yield f"version {number!r} is {version!r}, which is not a workflow class"
        return
    if version.version != number:
        yield f"version {number!r} is {version.__name__}, which has version = {version.version!r}"
    if not _belongs_to(version, cls):
        yield f"{version.__name__} must be nested in {cls.__name__} or be in the same package"
    if version.dispatched_by is not None and version.dispatched_by.name != cls.name:
        yield f"{version.__name__} is already a version of {version.dispatched_by.__name__}"


def _belongs_to(version: type, dispatcher: type) -> bool:
    """Return True if ``version`` is nested in the dispatcher, or in the same package."""
    is_nested = version.__qualname__.startswith(f"{dispatcher.__qualname__}.")
    return is_nested or _package(version) == _package(dispatcher)


def _package(cls: type) -> str:
    return cls.__module__.rpartition(".")[0] or cls.__module__
