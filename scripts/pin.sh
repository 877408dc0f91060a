#!/bin/sh
# Write the constraints files anew from what the resolver gives today. Run it to move to newer versions, then test.
#
#   scripts/pin.sh          both files
#
# The floor file asks for the lowest versions that pyproject.toml promises; the other one for the newest.
set -eu
cd "$(dirname "$0")/.."

pin() { # pin FILE PYTHON_VERSION COMMENT REQUIREMENT...
    file=$1 version=$2 comment=$3
    shift 3
    python=$(scripts/find_python.sh "$version") || { echo "pin: no Python $version" >&2; exit 3; }
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$python" -m venv "$work/venv"
    "$work/venv/bin/python" -m pip install -qq --upgrade pip
    "$work/venv/bin/python" -m pip install -qq --group dev "$@"
    {
        echo "# $comment"
        echo "# Written by scripts/pin.sh; do not edit."
        "$work/venv/bin/python" -m pip freeze --all | grep -v -e ' @ ' -e '^setuptools==' >"$work/pins.txt"
        "$work/venv/bin/python" -m pip install -qq uv  # pip knows the hashes of this platform's files alone
        "$work/venv/bin/uv" pip compile --quiet --no-deps --generate-hashes --no-annotate --no-header \
            --python "$work/venv/bin/python" "$work/pins.txt"
    } >"$file"
    rm -rf "$work"
}

# soupsieve 3 wants Python 3.11.5, and Debian 12 has 3.11.2.
pin constraints/py311-django52.txt 3.11 \
    "The floor: Python 3.11, Django 5.2 LTS, and the lowest version promised of every other base dependency." \
    cronsim==2.8 django==5.2.19 django-filter==25.1 djangorestframework==3.16.0 django-q2==1.11.0 msgspec==0.20.0 'psycopg[binary]==3.2.2' \
    temporalio==1.35.0 prometheus-client==0.21.1 opentelemetry-api==1.31.1 opentelemetry-sdk==1.31.1 \
    opentelemetry-exporter-otlp-proto-http==1.31.1 sentry-sdk==2.20.0 structlog==24.4.0 'soupsieve<3'
pin constraints/py313-django61.txt 3.13 "The newest of everything: Python 3.13 and Django 6.1." \
    cronsim 'django>=6.1,<6.2' django-filter djangorestframework django-q2 msgspec 'psycopg[binary]'
