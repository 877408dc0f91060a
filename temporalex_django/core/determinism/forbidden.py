"""Calls that workflow code may not make, by public dotted name, with the replacement for each.

The module has names only, and imports nothing in order to refuse it. The guard compares the names with actual calls.
The lint of workflow modules compares them with the source.
"""

from __future__ import annotations

from typing import Final

CLOCK: Final = "use api.now()"
CHANCE: Final = "use api.random()"
IDS: Final = "use api.uuid4()"
SECRET: Final = "use api.random() or api.uuid4(), or generate secrets in an activity"  # noqa: S105 - advice
SLEEP: Final = "use api.sleep()"
LOOP: Final = (
    "use asyncio only in an activity (to run code side by side: api.parallel; for the first of several: api.race)"
)
THREADS: Final = "move it into an activity (to run code side by side: api.parallel)"
FILES: Final = "read and write files in an activity"
PROCESS: Final = "start processes in an activity"
NETWORK: Final = "use the network in an activity"
ENVIRONMENT: Final = "read it in an activity, or pass it in as an argument"
SYSTEM: Final = "query the operating system in an activity"
DATABASE: Final = "use the ORM in an activity (with atomic=True, in the workflow's own transaction)"
MAIL: Final = "send mail in an activity"
CACHE: Final = "use the cache in an activity"
PERSON: Final = "wait for a signal or an update, or read input in an activity"

#: Functions and classes that are always refused.
CALLS: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            *(f"time.{name}{unit}" for name in ("time", "monotonic", "perf_counter") for unit in ("", "_ns")),
            *(
                f"time.{name}{unit}"
                for name in ("process_time", "thread_time", "clock_gettime")
                for unit in ("", "_ns")
            ),
            "datetime.datetime.now",
            "datetime.datetime.utcnow",
            "datetime.datetime.today",
            "datetime.date.today",
            "django.utils.timezone.now",
        ),
        CLOCK,
    ),
    **dict.fromkeys((f"uuid.uuid{version}" for version in (1, 4, 6, 7, 8)), IDS),
    "uuid.getnode": SYSTEM,
    "time.sleep": SLEEP,
    "asyncio.sleep": SLEEP,
    "random.SystemRandom": SECRET,
    "os.urandom": SECRET,
    "os.getrandom": SECRET,
    "django.utils.crypto.get_random_string": SECRET,
    **dict.fromkeys(("os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"), ENVIRONMENT),
    **dict.fromkeys(("os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.kill"), PROCESS),
    **dict.fromkeys(("os.getpid", "os.getppid", "os.uname", "os.cpu_count", "os.times", "os.getloadavg"), SYSTEM),
    **dict.fromkeys(
        (
            f"os.path.{name}"
            for name in (
                *("exists", "lexists", "isfile", "isdir", "islink", "ismount", "getsize", "getmtime", "getatime"),
                *("getctime", "samefile", "realpath", "abspath", "expanduser", "expandvars"),
            )
        ),
        FILES,
    ),
    **dict.fromkeys(("open", "io.open", "io.open_code", "io.FileIO", "glob.glob", "glob.iglob"), FILES),
    "input": PERSON,
    "threading.Thread.start": THREADS,
    "threading.Timer.start": THREADS,
    "_thread.start_new_thread": THREADS,
    "sqlite3.connect": DATABASE,
    "psycopg.connect": DATABASE,
}
#: Functions that are refused only without an argument. Then they read the clock, or take a seed from the system.
WITHOUT_ARGUMENT: Final[dict[str, str]] = {
    "random.Random": CHANCE,
    **dict.fromkeys(
        (
            *("time.localtime", "time.gmtime", "time.ctime", "time.asctime"),
            *("django.utils.timezone.localtime", "django.utils.timezone.localdate"),
        ),
        CLOCK,
    ),
}
#: Modules whose contents are refused, except for the names in ``HARMLESS`` and exception classes.
MODULES: Final[dict[str, str]] = {
    "random": CHANCE,
    "secrets": SECRET,
    "asyncio": LOOP,
    "os": FILES,
    "os.environ": ENVIRONMENT,
    "os.environb": ENVIRONMENT,
    "shutil": FILES,
    "tempfile": FILES,
    "subprocess": PROCESS,
    "multiprocessing": PROCESS,
    "concurrent.futures": THREADS,
    **dict.fromkeys(
        (
            *("socket", "http.client", "urllib.request", "smtplib", "ftplib", "imaplib", "poplib"),
            *("requests", "httpx", "aiohttp", "urllib3"),
        ),
        NETWORK,
    ),
    "django.core.mail": MAIL,
    "django.core.cache": CACHE,
}
# These names come back out of the modules above: they compute on their arguments alone.
HARMLESS: Final = frozenset(
    {
        *("os.path", "os.fspath", "os.fsencode", "os.fsdecode", "os.strerror", "os.PathLike"),
        *("asyncio.iscoroutine", "asyncio.iscoroutinefunction", "asyncio.isfuture"),
        *("secrets.compare_digest", "subprocess.list2cmdline", "random.Random"),
        "django.core.cache.utils",
    }
)
#: Methods of ``pathlib.Path`` that access the file system.
PATH_METHODS: Final = frozenset(
    [
        "absolute",
        "chmod",
        "copy",
        "copy_into",
        "cwd",
        "exists",
        "expanduser",
        "glob",
        "group",
        "hardlink_to",
        "home",
        "is_block_device",
        "is_char_device",
        "is_dir",
        "is_fifo",
        "is_file",
        "is_junction",
        "is_mount",
        "is_socket",
        "is_symlink",
        "iterdir",
        "lchmod",
        "link_to",
        "lstat",
        "mkdir",
        "move",
        "move_into",
        "open",
        "owner",
        "read_bytes",
        "read_text",
        "readlink",
        "rename",
        "replace",
        "resolve",
        "rglob",
        "rmdir",
        "samefile",
        "stat",
        "symlink_to",
        "touch",
        "unlink",
        "walk",
        "write_bytes",
        "write_text",
    ]
)
_ERRORS = ("Error", "Exception", "Expired", "Warning")


def advice(name: str, *, argument: bool = True) -> str | None:
    """Return what to use instead of a call of ``name``, a public dotted name, or None if the call is harmless.

    ``argument`` is True if the call has an argument.
    """
    if (advice_text := CALLS.get(name)) is not None:
        return advice_text
    if not argument and (advice_text := WITHOUT_ARGUMENT.get(name)) is not None:
        return advice_text
    last = name.rpartition(".")[2]
    if name.startswith("pathlib.") and last in PATH_METHODS:
        return FILES
    if last.endswith(_ERRORS):
        return None
    prefix = name
    while prefix and prefix not in HARMLESS:
        if prefix in MODULES:
            return MODULES[prefix]
        prefix = prefix.rpartition(".")[0]
    return None
