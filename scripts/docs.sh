#!/bin/sh
# Build the documentation into var/site. Every warning is an error: a link that leads nowhere, a public name on no page. Nothing is
# taken from the last build, which said its warnings once.
set -eu
cd "$(dirname "$0")/.."

.venv/bin/python -m sphinx --quiet --fail-on-warning --fresh-env --write-all -d var/doctrees docs var/site
echo "documentation: var/site/index.html"
