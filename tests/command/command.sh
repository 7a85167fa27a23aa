#!/usr/bin/env bash
# Tests of the bags command: tests/command/command.sh [build/bags [PART/PARTS]]. One line a
# check; at the end "N passed, N failed". They need Python 3 and nothing else.
#
# BAGS_GOLDEN and BAGS_REFERENCE say where the golden data and the independent
# reader are, if not in tests/.
set -eu
tests=$(cd "$(dirname "$0")/.." && pwd)
program=$(realpath "${1:-build/bags}")
export BAGS_GOLDEN=${BAGS_GOLDEN:-$tests/data/golden}
export BAGS_REFERENCE=${BAGS_REFERENCE:-$tests/lib/bagref.py}
export PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 "$tests/command/run.py" "$program" "${2:-1/1}"
