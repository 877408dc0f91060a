#!/bin/bash
# Run the suite in every lane: tests/support/lanes.py says what runs where. Arguments go to pytest.
#
# A lane runs in TEST_PROCESSES (3) processes side by side, with a database each, and ends with its slowest tests.
# A test that fails is run again, alone and once, at the end of its lane: see tests/support/flaky.py.
# The primary lane on PostgreSQL comes last, so that the output ends with its summary; the exit status is the worst of
# all lanes. A lane whose Python is missing says so, and is a failure when CI=true.
set -u
cd "$(dirname "$0")/.."

# Hundreds of processes import the same modules: without their bytecode that takes longer than what they do.
unset PYTHONDONTWRITEBYTECODE

worst=0
lanes=()

note() { # note STATUS TEXT
    lanes+=("$2")
    [ "$1" -le "$worst" ] || worst=$1
}

missing() { # missing LANE VERSIONS
    printf '\n!!! LANE NOT RUN: %s: no working Python %s on this machine\n\n' "$1" "$2" >&2
    case ${CI:-} in
        1 | true | yes) note 4 "$1: NOT RUN, and this is CI" ;;
        *) note 0 "$1: NOT RUN" ;;
    esac
}

lane() { # lane SHORT NAME ENVIRONMENT DATABASE PYTEST_ARGUMENT...
    local short=$1 name=$2 environment=$3 database=$4 status
    shift 4
    printf '\n=== %s, %s\n' "$name" "$database"
    TEST_LANE=$short-$database TEST_DB=$database "$environment/bin/python" -m pytest \
        -p tests.support.flaky -n "${TEST_PROCESSES:-3}" --dist loadgroup --durations 10 "$@"
    status=$? # 5, no tests collected, is a failure like any other
    if [ $status -eq 0 ]; then note 0 "$name, $database: passed"; else note $status "$name, $database: FAILED ($status)"; fi
}

environment() { # environment NAME DIRECTORY VERSIONS...: 0 ready, 1 not (noted)
    local name=$1 directory=$2
    shift 2
    scripts/venv.sh "$directory" "$@"
    case $? in
        0) return 0 ;;
        3) missing "$name" "$*" ;;
        *) note 4 "$name: the environment could not be built" ;;
    esac
    return 1
}

floor="Python 3.11 + Django 5.2"
newest="Python 3.13 + Django 6.1"

if environment "$floor" .venv-py311 3.11; then
    lane floor "$floor" .venv-py311 sqlite "$@"
    lane floor "$floor" .venv-py311 postgres "$@"
fi
# .venv may be of another Python where 3.13 is missing (make demo takes what there is); this lane must not.
if environment "$newest" .venv 3.13; then
    lane newest "$newest" .venv sqlite "$@"
    printf '\n=== lanes so far\n'
    printf '    %s\n' "${lanes[@]}"
    lane newest "$newest" .venv postgres "$@"
else
    printf '\n=== lanes\n'
    printf '    %s\n' "${lanes[@]}"
fi
exit "$worst"
