#!/bin/sh
# Compares the native operations with their references on this processor, then generates a few tokens.
set -eu
cd "$(dirname "$0")"
python=venv/bin/python
[ -f venv/installed ] || { echo "smoke_test.sh: error: run ./install.sh first" >&2; exit 2; }
"$python" -I -m ovspec info --self-check --json >/dev/null
"$python" run.py --prompt "Once upon a time" --max-new-tokens 8 --ignore-eos --json >/dev/null
echo "the bundle works; next: ./run.py --prompt 'Once upon a time'"
