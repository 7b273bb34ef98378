#!/bin/sh
# Installs the wheels of this bundle into ./venv. Needs Python with venv, and neither network nor compiler.
set -eu
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
fail() {
    echo "install.sh: error: $1" >&2
    exit 2
}
command -v "$PYTHON" >/dev/null || fail "$PYTHON is not installed; install it, or name another: PYTHON=... ./install.sh"
echo "install.sh: comparing the files with the manifest"
"$PYTHON" check_files.py --machine || exit 2
echo "install.sh: making the virtual environment"
rm -rf venv
"$PYTHON" -m venv venv || fail "$PYTHON can't make a virtual environment here; install its venv module"
echo "install.sh: installing the wheels"
venv/bin/python -I -m pip --isolated --disable-pip-version-check install --quiet --no-index \
    --find-links wheels --require-hashes --requirement requirements.txt || fail "pip could not install the wheels"
touch venv/installed
echo "install.sh: trying it: native operations against their references, then a few tokens"
./smoke_test.sh
