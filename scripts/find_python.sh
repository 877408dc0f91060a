#!/bin/sh
# Print the path of a working interpreter for one of the Python versions given, first choice first.
#
#   scripts/find_python.sh 3.13 3.12 3.11
#
# A name on PATH proves nothing: a pyenv shim exists for every version ever installed and fails unless that version is
# selected. So every candidate is run, and what is printed is its own sys.executable.
set -u

probe() { # probe VERSION COMMAND...: print the real path when COMMAND is that version and can make virtual environments
    wanted=$1
    shift
    "$@" -c '
import sys
import ensurepip, sqlite3, ssl, venv
if "%d.%d" % sys.version_info[:2] != sys.argv[1]:
    raise SystemExit(1)
print(getattr(sys, "_base_executable", None) or sys.executable)
' "$wanted" 2>/dev/null
}

find_version() {
    version=$1
    if command -v "python$version" >/dev/null 2>&1; then
        probe "$version" "python$version" && return 0
    fi
    if command -v pyenv >/dev/null 2>&1; then
        for installed in $(pyenv versions --bare 2>/dev/null | grep -E "^$version\.[0-9]+$" | sort -t. -k3 -rn); do
            PYENV_VERSION=$installed probe "$version" env "PYENV_VERSION=$installed" "python$version" && return 0
        done
    fi
    for root in "${PYENV_ROOT:-}" "${HOME:-}/.pyenv"; do
        [ -n "$root" ] || continue
        for candidate in "$root"/versions/"$version".*/bin/python; do
            [ -x "$candidate" ] && probe "$version" "$candidate" && return 0
        done
    done
    if command -v uv >/dev/null 2>&1; then
        candidate=$(uv python find --no-python-downloads "$version" 2>/dev/null) &&
            probe "$version" "$candidate" && return 0
    fi
    for name in python3 python; do
        command -v "$name" >/dev/null 2>&1 && probe "$version" "$name" && return 0
    done
    return 1
}

[ $# -gt 0 ] || { echo "usage: $0 VERSION..." >&2; exit 2; }
for wanted_version in "$@"; do
    find_version "$wanted_version" && exit 0
done
exit 1
