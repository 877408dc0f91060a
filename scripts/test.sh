#!/bin/bash
# Run the suite in every lane: tests/support/lanes.py says what runs where. Arguments go to pytest.
#
#   scripts/test.sh              `make test`: what a commit needs
#   scripts/test.sh --all        `make test-all`: everything, and the tests of the interfaces and hosts on a Temporal server
#
# A lane runs in TEST_PROCESSES (3) processes side by side, with a database each, and ends with its slowest tests.
# A test that fails is run again, alone and once, at the end of its lane: see tests/support/flaky.py.
# The primary lane on PostgreSQL comes last, so that the output ends with its summary; the exit status is the worst of
# all lanes. A lane whose Python is missing says so, and is a failure when CI=true.
#
# With --all, the output and the result of each part are kept in var/test-all, by commit. A part that has passed on this
# commit is not run again; PART="newest-sqlite temporal" runs these parts alone, whatever they did before.
set -u
cd "$(dirname "$0")/.."

# Hundreds of processes import the same modules: without their bytecode that takes longer than what they do.
unset PYTHONDONTWRITEBYTECODE

suite=test
if [ "${1:-}" = --all ]; then
    suite=test-all
    shift
fi
export TEST_SUITE=$suite

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

results=
if [ $suite = test-all ]; then
    results=var/test-all/$(git rev-parse --short HEAD)
    # Results of files that no commit has are of no use to a later run.
    [ -z "$(git status --porcelain)" ] || { rm -rf "$results-changed" && results=$results-changed; }
    mkdir -p "$results"
fi

part() { # part NAME LABEL COMMAND...
    local name=$1 label=$2 status began=$SECONDS
    shift 2
    if [ -z "$results" ]; then
        "$@"
        status=$?
    else
        [[ -z "${PART:-}" || " $PART " == *" $name "* ]] || return 0
        if [ -z "${PART:-}" ] && [ "$(cat "$results/$name.status" 2>/dev/null)" = 0 ]; then
            note 0 "$label: passed before: $(cat "$results/$name.summary")"
            return 0
        fi
        "$@" 2>&1 | tee "$results/$name.log"
        status=${PIPESTATUS[0]}
        echo "$status" >"$results/$name.status"
        echo "$(grep -aE '^=+ .* in [0-9.]+s' "$results/$name.log" | tail -1 | tr -d =), $((SECONDS - began)) s" >"$results/$name.summary"
        label="$label: $(cat "$results/$name.summary")"
    fi
    # 5, no tests collected, is a failure like any other
    if [ "$status" -eq 0 ]; then note 0 "$label: passed"; else note "$status" "$label: FAILED ($status)"; fi
}

run() { # run ENVIRONMENT PYTEST_ARGUMENT...
    local environment=$1
    shift
    "$environment/bin/python" -m pytest -p tests.support.flaky -n "${TEST_PROCESSES:-3}" --dist loadgroup --durations 10 "$@"
}

lane() { # lane SHORT NAME ENVIRONMENT DATABASE PYTEST_ARGUMENT...
    local short=$1 name=$2 environment=$3 database=$4
    shift 4
    printf '\n=== %s, %s\n' "$name" "$database"
    TEST_LANE=$short-$database TEST_DB=$database part "$short-$database" "$name, $database" run "$environment" "$@"
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

list() { # list TITLE
    printf '\n=== %s\n' "$1"
    printf '    %s\n' "${lanes[@]}"
}

floor="Python 3.11 + Django 5.2"
newest="Python 3.13 + Django 6.1"

if environment "$floor" .venv-py311 3.11; then
    lane floor "$floor" .venv-py311 sqlite "$@"
    lane floor "$floor" .venv-py311 postgres "$@"
fi
# .venv may be of another Python where 3.13 is missing (make demo takes what there is); this lane must not.
if environment "$newest" .venv 3.13; then
    if [ $suite = test-all ]; then
        HOSTS=temporal TEST_DB=sqlite part temporal "acceptance on a Temporal server" \
            run .venv "$@" tests/acceptance tests/property/test_cluster.py
        # shellcheck disable=SC2086 - a list of folders
        BACKEND=temporal TEST_DB=sqlite part interfaces "interfaces on a Temporal server" run .venv "$@" $INTERFACES
    fi
    lane newest "$newest" .venv sqlite "$@"
    list "lanes so far"
    lane newest "$newest" .venv postgres "$@"
    [ $suite = test ] || list "all lanes"
else
    list "lanes"
fi
exit "$worst"
