"""The demo's web server, as a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from example_project.replay.processes import Process, descendants
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_one_port_is_served_by_several_processes_that_end_together(tmp_path: Path, end: signal.Signals) -> None:
    settings = {"DJANGO_SETTINGS_MODULE": "example_project.settings", "DATABASE_URL": "", "DEMO_DB": "sqlite"}
    web = Process(
        "web",
        command=[sys.executable, "manage.py", "serve", "--port", "0", "--processes", "2"],
        env={**os.environ, **settings, "SHOP_VAR": str(tmp_path)},
        cwd=ROOT,
        log=tmp_path / "web.log",
    )
    try:
        address = web.first_line()
        (other,) = descendants(web.child.pid)
        web.child.send_signal(signal.SIGSTOP)
        with urlopen(f"{address}/static/shop/icon.svg", timeout=30) as answer:
            assert answer.status == 200
        web.child.send_signal(signal.SIGCONT)
        web.child.send_signal(end)
        assert web.child.wait(30) == (0 if end == signal.SIGTERM else -signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{other.pid}").exists(), seconds=30, what="the end of the other one")
    finally:
        web.child.send_signal(signal.SIGCONT)
        web.stop()
