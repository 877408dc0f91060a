"""django-q2 as the host of pumps: a broker that answers with pump tokens.

    Q_CLUSTER = {..., "broker_class": "temporalex_django.workers.q2.Broker"}

``manage.py qcluster`` then runs the project's own tasks as ever, from the broker that the rest of ``Q_CLUSTER`` configures, and in
some of its processes pumps: resident tasks that advance workflows. Turns never go through django-q2's queue.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import shutil
import threading
import time
from multiprocessing import util
from typing import Any, ClassVar
from uuid import uuid4

from django.utils import timezone
from django_q.brokers import Broker as BaseBroker
from django_q.conf import Conf
from django_q.signing import SignedPackage

from temporalex_django.conf import get_settings
from temporalex_django.workers.pump import Pump
from temporalex_django.workers.pump_slots import PumpSlot, folder_of

log = logging.getLogger("temporalex_django.worker")

#: A slot that has not beaten for so long is taken for empty (the keeper of a pump beats twice a second).
STALE_AFTER = 15.0
#: A token may wait behind tasks of the project, since the pusher's queue is bounded: another one only after this.
HANDED_OUT_FOR = 30.0
_LOOK_EVERY = 0.2
_ACK = "temporalex-pump-"
_ORPHANED = "its cluster is gone"


def pumps() -> int:
    """How many of the cluster's processes hold a pump."""
    return get_settings().Q2_PUMPS or max(1, int(Conf.WORKERS) // 2)


class PumpTokens:
    """Mix it in front of a broker of your own: ``class Broker(PumpTokens, MyBroker)``.

    ``dequeue`` runs in the cluster's pusher process. When the pusher ends, pumps are told to finish: stock django-q2 waits for its
    workers to read a STOP that a resident task never reads.
    """

    _slots: list[PumpSlot] | None = None
    _handed: dict[int, float]
    _owner: int = 0

    def dequeue(self) -> Any:
        token = self._token()
        return [token] if token is not None else super().dequeue()  # type: ignore[misc] # the broker that this is mixed into

    def acknowledge(self, task_id: Any) -> Any:
        """Nothing for a token; anything else is the project's broker's."""
        return None if _is_token(task_id) else super().acknowledge(task_id)  # type: ignore[misc]

    def fail(self, task_id: Any) -> Any:
        return None if _is_token(task_id) else super().fail(task_id)  # type: ignore[misc]

    def delete(self, task_id: Any) -> Any:
        return None if _is_token(task_id) else super().delete(task_id)  # type: ignore[misc]

    def _token(self) -> tuple[str, str] | None:
        if self._slots is None or self._owner != os.getpid():
            self._open()
        assert self._slots is not None
        for index, slot in enumerate(self._slots):
            slot.refresh()
            if slot.is_held(stale_after=STALE_AFTER):
                continue
            handed = self._handed.get(index, 0.0)
            if handed and slot.beaten_at < handed and time.monotonic() - handed < HANDED_OUT_FOR:
                continue  # on its way
            self._handed[index] = time.monotonic()
            slot.tell(stop=False)
            return f"{_ACK}{index}", SignedPackage.dumps(_package(index, slot.path))
        return None

    def _open(self) -> None:
        folder = folder_of(os.getppid())
        self._owner = os.getpid()
        self._slots = [PumpSlot(folder / f"pump-{index}") for index in range(pumps())]
        self._handed = {}
        slots = self._slots

        def finish() -> None:
            for slot in slots:
                slot.tell(stop=True)
            if all(not slot.is_held(stale_after=STALE_AFTER) for slot in slots):
                shutil.rmtree(folder, ignore_errors=True)

        util.Finalize(None, finish, exitpriority=10)


def _is_token(task_id: Any) -> bool:
    return isinstance(task_id, str) and task_id.startswith(_ACK)


def _package(index: int, path: str) -> dict[str, Any]:
    """A task of django-q2 that is never saved, never timed out and never retried."""
    return {
        "id": uuid4().hex,
        "name": f"temporalex-pump-{index}",
        "func": "temporalex_django.workers.q2.pump",
        "args": (path,),
        "kwargs": {},
        "started": timezone.now(),
        "save": False,
        "ack_failure": True,
        "timeout": -1,
        "cached": False,
        "sync": False,
    }


def pump(path: str) -> None:
    """Hold a slot of the cluster until told to stop, orphaned, or old. Runs as a task of django-q2.

    When it retires by age or memory the process ends with it, so that its memory is given back; the cluster starts another one.
    """
    slot = PumpSlot(path)
    if slot.is_held(stale_after=STALE_AFTER) and slot.pid != os.getpid():
        return  # a second token for a slot that was slow to beat
    slot.beat()
    faulthandler.enable()
    stop = threading.Event()
    watch = _Watch(slot, stop)
    threading.Thread(target=watch.run, name="temporalex-watch", daemon=True).start()
    try:
        Pump(kind="q2", on_beat=slot.beat).run(stop)
    finally:
        slot.vacate()
        stop.set()
        if slot.told_to_stop or watch.retired == _ORPHANED:
            slot.remove()
    if watch.retired:
        log.info("this pump retires: %s", watch.retired)
        raise SystemExit(0)


class _Watch:
    """Tells a pump when to stop."""

    def __init__(self, slot: PumpSlot, stop: threading.Event) -> None:
        self.slot = slot
        self.stop = stop
        self.parent = os.getppid()
        self.retired = ""

    def run(self) -> None:
        settings, began = get_settings(), time.monotonic()
        while not self.stop.wait(_LOOK_EVERY):
            if self.slot.told_to_stop:
                break
            if os.getppid() != self.parent:
                self.retired = _ORPHANED
                break
            if settings.WORKER_MAX_SECONDS is not None and time.monotonic() - began > settings.WORKER_MAX_SECONDS:
                self.retired = f"it is older than {settings.WORKER_MAX_SECONDS:g} s"
                break
            if settings.WORKER_MAX_MEMORY_MB is not None and _memory_mb() > settings.WORKER_MAX_MEMORY_MB:
                self.retired = f"it takes more than {settings.WORKER_MAX_MEMORY_MB} MB"
                break
        self.stop.set()


def _memory_mb() -> float:
    """Resident memory of this process; 0.0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - five times a second
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


class _NoTasks(BaseBroker):  # type: ignore[misc] # django-q2 is not typed
    """For a cluster that has no queue of its own: pumps only."""

    def dequeue(self) -> None:
        time.sleep(Conf.POLL)

    def queue_size(self) -> int:
        return 0

    def lock_size(self) -> int:
        return 0

    def ping(self) -> bool:
        return True

    def info(self) -> str:
        return "no queue"


def _project_broker() -> type[Any]:
    """The broker that ``Q_CLUSTER`` configures apart from its class, as ``django_q.brokers.get_broker`` chooses it."""
    if Conf.IRON_MQ:
        from django_q.brokers.ironmq import IronMQBroker as Chosen  # noqa: PLC0415 - each needs a library of its own
    elif isinstance(Conf.SQS, dict):
        from django_q.brokers.aws_sqs import Sqs as Chosen  # noqa: PLC0415
    elif Conf.ORM:
        from django_q.brokers.orm import ORM as Chosen  # noqa: PLC0415, N811
    elif Conf.MONGO:
        from django_q.brokers.mongo import Mongo as Chosen  # noqa: PLC0415
    elif Conf.REDIS or Conf.DJANGO_REDIS:
        from django_q.brokers.redis_broker import Redis as Chosen  # noqa: PLC0415
    else:
        Chosen = _NoTasks  # noqa: N806 - a class
    return Chosen  # type: ignore[no-any-return]


class Broker(PumpTokens, _project_broker()):  # type: ignore[misc] # the base is chosen by the settings
    """The project's broker, with pump tokens."""

    durable_wakeups: ClassVar[bool] = True
