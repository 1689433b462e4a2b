#!/bin/sh
# Finds a Python that MXNet 1.9.1 runs on and hands over to the set-up program (python -m setup) with it.
# PYTHON names one; without it: that of an existing .venv, python3, then python3.14 down to python3.9.
# All arguments go to the set-up program.

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
# These would make another Python load the wrong modules.
unset PYTHONHOME PYTHONPATH PYTHONSAFEPATH

version() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null </dev/null
}

suits() {
    case $1 in 3.9.* | 3.1[0-4].*) return 0 ;; esac
    return 1
}

start() {
    python=$1
    shift
    cd "$root" && exec "$python" -m setup "$@"
}

if [ -n "$PYTHON" ]; then
    found=$(version "$PYTHON")
    suits "$found" && start "$PYTHON" "$@"
    if [ -n "$found" ]; then why="is Python $found"; else why="does not run"; fi
    echo "setup: PYTHON=$PYTHON $why; Python 3.9 to 3.14 will do: name one of those." >&2
    exit 1
fi

for candidate in "$root/.venv/bin/python" python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
    suits "$(version "$candidate")" && start "$candidate" "$@"
done

found=$(version python3)
if [ -n "$found" ]; then why="python3 is $found"; else why="there is no python3"; fi
echo "setup: no Python 3.9 to 3.14 on PATH ($why): install one (Debian, Ubuntu: apt-get install python3;" \
    "elsewhere: uv python install 3.13), or name it with make setup PYTHON=/path/to/python3.13" >&2
exit 1
