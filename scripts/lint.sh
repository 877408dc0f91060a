#!/bin/bash
# Run every check that needs no test run; the exit status says whether all passed. Needs .venv (make lint builds it).
#
#   scripts/lint.sh              all of them
#   scripts/lint.sh mypy ...     those whose names are given: each hook of .pre-commit-config.yaml runs one
set -u
cd "$(dirname "$0")/.."

only=("$@")
failed=()
names=()
outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT
step() { # step NAME COMMAND...: begun when fewer than two others run, reported at the end
    local name=$1
    shift
    [[ ${#only[@]} -eq 0 || " ${only[*]} " == *" $name "* ]] || return 0
    names+=("$name")
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    { "$@" >"$outputs/$name" 2>&1; echo $? >"$outputs/$name.status"; } &
}

bin=.venv/bin
step "mypy" $bin/python -m mypy # the two long ones first
step "documentation" scripts/docs.sh
step "ruff-check" $bin/python -m ruff check .
step "ruff-format" $bin/python -m ruff format --check .
step "import-contracts" $bin/lint-imports --cache-dir .import_linter_cache
step "migrations" $bin/python manage.py makemigrations --check --dry-run
step "system-checks" $bin/python manage.py check
step "codespell" $bin/python -m codespell_lib
step "prose" $bin/python scripts/prose.py
step "changelog" $bin/towncrier build --draft

wait
for name in "${names[@]}"; do
    if [ "$(cat "$outputs/$name.status")" = 0 ]; then
        printf 'ok    %s\n' "$name"
    else
        printf 'FAIL  %s\n' "$name"
        cat "$outputs/$name"
        failed+=("$name")
    fi
done

if [ ${#names[@]} -lt ${#only[@]} ]; then
    echo "lint: unknown check among: ${only[*]}" >&2
    exit 2
fi
if [ ${#failed[@]} -gt 0 ]; then
    printf '\nlint failed: %s\n' "$(IFS=,; echo "${failed[*]}")"
    exit 1
fi
