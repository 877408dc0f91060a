#!/bin/bash
# Run every check that needs no test run; the exit status says whether all passed. Needs .venv (make lint builds it).
#
#   scripts/lint.sh              all of them
#   scripts/lint.sh mypy ...     those whose names are given: each hook of .pre-commit-config.yaml runs one
set -u
cd "$(dirname "$0")/.."

only=("$@")
failed=()
ran=0
step() {
    local name=$1 output
    shift
    [[ ${#only[@]} -eq 0 || " ${only[*]} " == *" $name "* ]] || return 0
    ran=$((ran + 1))
    if output=$("$@" 2>&1); then
        printf 'ok    %s\n' "$name"
    else
        printf 'FAIL  %s\n%s\n' "$name" "$output"
        failed+=("$name")
    fi
}

bin=.venv/bin
step "ruff-check" $bin/python -m ruff check .
step "ruff-format" $bin/python -m ruff format --check .
step "import-contracts" $bin/lint-imports --cache-dir .import_linter_cache
step "mypy" $bin/python -m mypy
step "migrations" $bin/python manage.py makemigrations --check --dry-run
step "system-checks" $bin/python manage.py check
step "documentation" scripts/docs.sh
step "codespell" $bin/python -m codespell_lib
step "changelog" $bin/towncrier build --draft

if [ "$ran" -lt ${#only[@]} ]; then
    echo "lint: no such check among: ${only[*]}" >&2
    exit 2
fi
if [ ${#failed[@]} -gt 0 ]; then
    printf '\nlint failed: %s\n' "$(IFS=,; echo "${failed[*]}")"
    exit 1
fi
