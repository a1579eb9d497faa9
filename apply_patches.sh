#!/usr/bin/env bash
# Apply the patches in patches/ to the installed OpenRLHF and vLLM and print the fingerprints; seconds, no GPU.
#
#   bash apply_patches.sh                       apply all packages
#   bash apply_patches.sh status                any other command of rft.overlay: verify, revert, repair, check, …
#   bash apply_patches.sh apply openrlhf --python /path/to/python
#
# The target is --python, else .venv/bin/python here, else python3. Needs no installation: the tool runs from this
# folder, in the target interpreter, on the standard library alone.
set -Eeuo pipefail

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
python="$root/.venv/bin/python"
[[ -x $python ]] || python=python3

arguments=("$@")
for ((i = 0; i < ${#arguments[@]}; i++)); do
  case "${arguments[i]}" in
    --python) python="${arguments[i + 1]:-}" ;;
    --python=*) python="${arguments[i]#--python=}" ;;
  esac
done
if ! command -v -- "$python" >/dev/null; then
  printf 'error: no such interpreter: %s\n  repair: pass --python PATH\n' "$python" >&2
  exit 2
fi

case "${1:-}" in
  -h | --help) ;;
  "" | -*) set -- apply "$@" ;;
esac

# Not PYTHONPATH: the check that the target itself can import rft must not be answered by our own environment.
PYTHONSAFEPATH=1 exec "$python" -c '
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("rft.overlay", run_name="__main__", alter_sys=True)
' "$root" "$@"
