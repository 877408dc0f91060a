"""The deployment of this project on its cluster: which build of the code gets the tasks of runs."""

from __future__ import annotations

import hashlib
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from temporalio.api.deployment.v1 import WorkerDeploymentVersion as BuildAddress
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

from temporalex_django.authoring.workflow import concrete_classes
from temporalex_django.backends.cluster.answers import report_unavailable
from temporalex_django.backends.cluster.client import cluster_client, send
from temporalex_django.conf import get_settings
from temporalex_django.errors import ActionNotPossible
from temporalex_django.present.project_view import BuildView

log = logging.getLogger("temporalex_django.backends")

#: Metadata of a build on the cluster: the digest of the code with which its first worker began.
_CODE: Final = "temporalex_code"


def build() -> WorkerDeploymentVersion | None:
    """Return the build of this process, or None without the setting ``CLUSTER["DEPLOYMENT"]``."""
    settings = get_settings().CLUSTER
    if "DEPLOYMENT" not in settings:
        return None
    return WorkerDeploymentVersion(deployment_name=settings["DEPLOYMENT"], build_id=settings["BUILD_ID"])


def worker_config() -> WorkerDeploymentConfig | None:
    """Return the option with which workers of the SDK name their build."""
    version, behavior = build(), VersioningBehavior.AUTO_UPGRADE
    if version is None:
        return None
    return WorkerDeploymentConfig(version, use_worker_versioning=True, default_versioning_behavior=behavior)


def code_digest() -> str:
    """Return a digest of the modules that declare workflows."""
    names = sorted({cls.__module__ for cls in concrete_classes()})
    digest = hashlib.sha256()
    for name in names:
        path = getattr(sys.modules.get(name), "__file__", None)
        digest.update(name.encode() + b"\0" + (Path(path).read_bytes() if path and Path(path).is_file() else b""))
    return digest.hexdigest()[:16]


async def read_build(sdk: Client) -> BuildView | None:
    """Return what the cluster knows about the build of this process. None without a deployment."""
    version = build()
    if version is None:
        return None
    view = BuildView(deployment=version.deployment_name, build=version.build_id)
    try:
        request = service.DescribeWorkerDeploymentRequest(deployment_name=version.deployment_name)
        answer = await send(sdk, request)
        code = await _read_code(sdk, version)
    except RPCError as exc:
        if exc.status is not RPCStatusCode.NOT_FOUND:
            raise
        return view
    current = answer.worker_deployment_info.routing_config.current_deployment_version.build_id
    return replace(view, has_polled=True, current=current, is_reused=code not in (None, code_digest()))


def _address(version: WorkerDeploymentVersion) -> BuildAddress:
    return BuildAddress(deployment_name=version.deployment_name, build_id=version.build_id)


async def _read_code(sdk: Client, version: WorkerDeploymentVersion) -> str | None:
    """Return the digest of the code with which the first worker of a build began, or None."""
    request = service.DescribeWorkerDeploymentVersionRequest(deployment_version=_address(version))
    answer = await send(sdk, request)
    entry = answer.worker_deployment_version_info.metadata.entries.get(_CODE)
    return None if entry is None else str(cluster_client().payloads.decode(entry))


async def note_code(sdk: Client) -> BuildView | None:
    """Store the digest of the code of this process with its build, unless a worker has, and return the build.

    Returns None without a deployment, and if the cluster has refused.
    """
    try:
        view, version = await read_build(sdk), build()
        if view is not None and version is not None and view.has_polled and await _read_code(sdk, version) is None:
            await _store_code(sdk, version)
    except RPCError as exc:
        log.warning("the code of this worker was not noted with its build: %s", exc.message)
        return None
    if view is not None and view.is_reused:
        log.error(
            "the build %s of the deployment %s was deployed before with other code: give each deploy its own BUILD_ID",
            view.build,
            view.deployment,
        )
    return view


async def _store_code(sdk: Client, version: WorkerDeploymentVersion) -> None:
    entries = {_CODE: cluster_client().payloads.encode(code_digest())}
    kind = service.UpdateWorkerDeploymentVersionMetadataRequest
    await send(sdk, kind(deployment_version=_address(version), upsert_entries=entries))


def make_current() -> BuildView:
    """Let the build of this process get the tasks of new runs, and of all open runs that are not pinned.

    Raises ``ActionNotPossible`` if the project has no deployment, if no worker polls with the build, or if it has been
    deployed with other code, and ``UpdateTimeout`` if the cluster does not answer.
    """
    version = build()
    if version is None:
        raise ActionNotPossible("the project has no build to make current: set TEMPORALEX['CLUSTER']['DEPLOYMENT']")
    label = f"build {version.build_id} of {version.deployment_name}"
    client = cluster_client()
    with report_unavailable(label):
        view = client.call(read_build)
        assert view is not None
        if not view.has_polled:
            raise ActionNotPossible(f"no worker has polled with {label}: start workers with it first")
        if view.is_reused:
            raise ActionNotPossible(f"{label} was deployed before with other code: give each deploy its own BUILD_ID")
        kind = service.SetWorkerDeploymentCurrentVersionRequest
        client.ask(kind(deployment_name=version.deployment_name, build_id=version.build_id))
    return view
