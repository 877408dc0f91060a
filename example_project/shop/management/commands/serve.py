"""The command ``manage.py serve``: the demo's web server.

It has processes with threads and kept-alive connections, and serves static files.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from typing import Any

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management.base import BaseCommand, CommandParser
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler, get_internal_wsgi_application
from django.db import connections

from example_project.replay.options import positive_count
from example_project.replay.processes import die_with_parent


class Handler(WSGIRequestHandler):
    """Django's handler for one connection."""

    # Head and body of an answer are two writes; with Nagle's algorithm the second waits 40 ms for the client's ACK.
    disable_nagle_algorithm = True


class Server(ThreadedWSGIServer):
    """Django's threaded server with a long queue for customers who connect at once."""

    request_queue_size = 128


class Command(BaseCommand):
    """Serve the shop on 127.0.0.1 until SIGTERM or Ctrl-C.

    Unlike ``runserver`` it works with DEBUG off, starts no worker for workflows, and prints the port that it got.
    """

    help = "Serve the shop on 127.0.0.1; the first line of output is the address."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of the port and of the number of processes."""
        parser.add_argument("--port", type=int, default=8000, help="port to serve on; 0 picks a free one")
        parser.add_argument(
            "--processes",
            type=positive_count,
            default=1,
            metavar="N",
            help="number of processes that accept connections",
        )

    def handle(self, *args: Any, port: int, processes: int, **options: Any) -> None:
        """Serve."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with Server(("127.0.0.1", port), Handler) as server:
            server.set_app(StaticFilesHandler(get_internal_wsgi_application()))
            connections.close_all()  # two processes must not talk over one connection
            # A connection stays with the process that accepted it, and so does its customer: the executor of their cart
            # is in the memory of that process when the next request comes.
            for _ in range(processes - 1):
                multiprocessing.get_context("fork").Process(target=_serve_too, args=(server,), daemon=True).start()
            self.stdout.write(f"http://127.0.0.1:{server.server_address[1]}")
            self.stdout.flush()
            _serve(server)


def _serve(server: Server) -> None:
    try:
        server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        return


def _serve_too(server: Server) -> None:
    die_with_parent()  # if the parent is killed, it cannot end its children
    _serve(server)
