#!/bin/bash
# Run every check that needs no test run; the exit status says whether all passed. Needs .venv (make lint builds it).
set -u
cd "$(dirname "$0")/.."

failed=()
step() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        printf 'ok    %s\n' "$name"
    else
        printf 'FAIL  %s\n%s\n' "$name" "$output"
        failed+=("$name")
    fi
}

bin=.venv/bin
# mypy's plugin reads tests/settings.py and leaves without cleaning up: it gets a folder that is removed here.
TX_TEST_FOLDER=$(mktemp -d)
export TX_TEST_FOLDER
trap 'rm -rf "$TX_TEST_FOLDER"' EXIT
step "ruff check" $bin/python -m ruff check .
step "ruff format" $bin/python -m ruff format --check .
step "import contracts" $bin/lint-imports --cache-dir .import_linter_cache
step "mypy" $bin/python -m mypy
step "migrations" $bin/python manage.py makemigrations --check --dry-run
step "system checks" $bin/python manage.py check
step "codespell" $bin/python -m codespell_lib
step "changelog" $bin/towncrier build --draft

if [ ${#failed[@]} -gt 0 ]; then
    printf '\nlint failed: %s\n' "$(IFS=,; echo "${failed[*]}")"
    exit 1
fi
