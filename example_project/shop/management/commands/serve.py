"""manage.py serve: the demo's web server, threads and kept-alive connections, static files included."""

from __future__ import annotations

import signal
import sys
from typing import Any

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management.base import BaseCommand, CommandParser
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler, get_internal_wsgi_application


class Handler(WSGIRequestHandler):
    """Django's handler for one connection."""

    # Head and body of an answer are two writes; with Nagle's algorithm the second waits 40 ms for the client's ACK.
    disable_nagle_algorithm = True


class Server(ThreadedWSGIServer):
    """Django's threaded server, with room for many customers who connect at once."""

    request_queue_size = 128


class Command(BaseCommand):
    """Serve the shop on 127.0.0.1 until SIGTERM or Ctrl-C.

    Unlike runserver it works with DEBUG off, starts no runner for workflows, and reports the port that it got.
    """

    help = "Serve the shop on 127.0.0.1; the first line of output is the address."

    def add_arguments(self, parser: CommandParser) -> None:
        """Read the port."""
        parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")

    def handle(self, *args: Any, port: int, **options: Any) -> None:
        """Serve."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with Server(("127.0.0.1", port), Handler) as server:
            server.set_app(StaticFilesHandler(get_internal_wsgi_application()))
            self.stdout.write(f"http://127.0.0.1:{server.server_address[1]}")
            self.stdout.flush()
            try:
                server.serve_forever(poll_interval=0.1)
            except KeyboardInterrupt:
                return
