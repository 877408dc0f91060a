#!/bin/sh
# Build a release of the last commit in var/release: a wheel, an sdist, and an SBOM of the dependencies. Nothing is published.
#
#   scripts/release.sh           refuses while the commit is not ready, for example while [project.urls] has placeholders
#   scripts/release.sh --dry     names what is missing, and builds all the same (make release does this)
#
# Both files are built twice, each time from another folder with another umask, and must be equal to the byte.
set -eu
cd "$(dirname "$0")/.."

case ${1-} in
    "" | --dry) ;;
    *) echo "usage: scripts/release.sh [--dry]" >&2; exit 2 ;;
esac
python=$PWD/.venv/bin/python
out=$PWD/var/release
missing=$("$python" scripts/release.py missing)
if [ -n "$missing" ]; then
    printf 'Before a release:\n%s\n' "$missing" >&2
    [ "${1-}" = --dry ] || { echo "release: refused; --dry builds all the same" >&2; exit 1; }
fi

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build() { # build NAME UMASK: from an export of the last commit, so that no other file gets in
    (
        umask "$2"
        mkdir "$work/$1"
        git archive HEAD | tar -x -C "$work/$1"
        "$python" -m build --no-isolation --outdir "$work/$1/dist" "$work/$1" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    )
}
build first 022
build second 077
for built in "$work"/first/dist/*; do
    cmp "$built" "$work/second/dist/$(basename "$built")"
done

rm -rf "$out"
mkdir -p "$out"
cp "$work"/first/dist/* "$out"
cd "$out"
"$python" "$OLDPWD/scripts/release.py" sbom ./*.whl ./*.tar.gz >sbom.cdx.json
sha256sum ./*
echo "Built twice and equal, with SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH. In var/release. Nothing is published; a person would run:"
echo "  python -m twine upload var/release/*.whl var/release/*.tar.gz"
