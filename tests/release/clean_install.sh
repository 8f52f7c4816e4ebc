#!/usr/bin/env bash
# Build the sdist and the wheel, install the wheel in an environment of its own, and use it there: `make wheel`.
# Needs Python 3.11 or newer (PYTHON=...) and a package registry; leaves both files in dist/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
torch=$(sed -n 's/^ *"\(torch[<>=][^"]*\)".*/\1/p' pyproject.toml)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"${PYTHON:-python3}" -m venv "$folder/builder"
"$folder/builder/bin/python" -m pip install --quiet build
rm -rf dist
"$folder/builder/bin/python" -m build --outdir dist . >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; } # the wheel is made of the sdist

"${PYTHON:-python3}" -m venv "$folder/venv"
bin=$folder/venv/bin
"$bin/python" -m pip install --quiet "$torch" # alone, so that its build is chosen by its own bound
"$bin/python" -m pip install --quiet "$root"/dist/*.whl

cd "$folder" # away from the sources: what is used below comes with the package
unset PYTHONPATH # the installed package, not the sources
version=$(sed -n 's/^__version__ = "\([^"]*\)".*/\1/p' "$root/src/fedquilt/__init__.py")
[ "$("$bin/fedquilt" --version)" = "fedquilt $version" ]
[ "$("$bin/python" -m fedquilt --version)" = "fedquilt $version" ]
"$bin/fedquilt" doctor >doctor.txt
"$bin/fedquilt" methods >methods.txt
"$bin/fedquilt" recipes >recipes.txt
"$bin/fedquilt" run quick rounds=2 engine.kind=local >run.txt
[ -s runs/quick-*/result.json ] && [ -s runs/quick-*/report.html ]
"$bin/fedquilt" compare demo rounds=1 "compare.seeds=[0]" >compare.txt
"$bin/fedquilt" new project >new.txt
(cd project && "$bin/fedquilt" run recipe.toml rounds=2 >run.txt && "$bin/fedquilt" run recipe.toml rounds=2 engine.kind=workers name=workers >workers.txt)
cmp <(grep '^state ' project/run.txt) <(grep '^state ' project/workers.txt) # a network and a method of one's own
"$bin/fedquilt" demo rare >demo.txt
[ -s runs/demo/index.html ]
"$bin/python" -W error -c "import fedquilt; [getattr(fedquilt, name) for name in fedquilt.__all__]; import fedquilt.report"
"$bin/python" -m pip check
echo "fedquilt $version: built, installed and used ($(cd "$root/dist" && echo *))"
