#!/bin/sh
# Create or refresh a virtual environment from pyproject.toml.
#
#   scripts/venv.sh DIRECTORY PYTHON_VERSION...
#
# Takes the first of the versions that works here, installs the exact versions of that interpreter's constraints file (each
# only with a hash that stands there) and the project itself in editable form. A stamp holds a digest of everything that
# went in: nothing is done twice.
set -eu
cd "$(dirname "$0")/.."

target=$1
shift

python=$(scripts/find_python.sh "$@") || {
    echo "venv: no working Python found, tried: $*" >&2
    exit 3
}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
    3.11) constraints=constraints/py311-django52.txt ;;
    *) constraints=constraints/py313-django61.txt ;;
esac

# pyvenv.cfg keeps absolute paths, so an environment that was moved with its checkout is made anew: PWD is in the digest.
digest=$( (echo "$python $PWD"; cat pyproject.toml "$constraints" scripts/venv.sh) | cksum)
if [ -x "$target/bin/python" ] && [ "$(cat "$target/.stamp" 2>/dev/null)" = "$digest" ]; then
    exit 0
fi

# Two targets of one make -j, or two people in one checkout, must not build the same environment at once.
if command -v flock >/dev/null 2>&1 && [ -z "${TX_VENV_LOCKED:-}" ]; then
    export TX_VENV_LOCKED=1
    exec flock "$target.lock" scripts/venv.sh "$target" "$@"
fi

echo "venv: $target from Python $version with $constraints" >&2
# An environment of the same interpreter is brought up to date in place: rebuilding it would pull the rug from under
# whoever is using it.
if [ "$("$target/bin/python" -c 'import sys; print(sys._base_executable)' 2>/dev/null)" != "$python" ]; then
    rm -rf "$target"
    "$python" -m venv "$target"
fi
rm -f "$target/.stamp"
pip() { "$target/bin/python" -m pip --disable-pip-version-check "$@"; }
# Every file is known by its hash; the project itself is built here.
sed -n '/^pip==/,/[^\\]$/p' "$constraints" >"$target/.pip"
pip install -qq --upgrade --require-hashes --no-deps --requirement "$target/.pip"
pip install -qq --require-hashes --no-deps --requirement "$constraints"
pip install -qq --no-deps --editable .
pip check >/dev/null || pip check
echo "$digest" >"$target/.stamp"
