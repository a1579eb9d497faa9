#!/usr/bin/env bash
# Recompile the hash-locked requirement sets from pyproject.toml. No index address is written.
#   bash requirements/compile.sh [uv pip compile options, e.g. --upgrade]
set -Eeuo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
for stack in cpu gpu cpu-0.9.4; do
    DS_BUILD_OPS=0 "${UV:-uv}" pip compile --quiet pyproject.toml --extra "$stack" --extra dev --extra lm-eval \
        --overrides "requirements/$stack.overrides" --python-version 3.11 --python-platform x86_64-manylinux_2_35 \
        --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
        --output-file "requirements/$stack.txt" "$@"
done
