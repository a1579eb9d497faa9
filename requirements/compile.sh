#!/usr/bin/env bash
# Recompile the hash-locked requirement sets from pyproject.toml. No index address is written.
#   bash requirements/compile.sh [uv pip compile options, e.g. --upgrade]
set -Eeuo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# compile FILE EXTRA PLATFORM MORE…: one of them; overrides have its name.
compile() {
    DS_BUILD_OPS=0 "${UV:-uv}" pip compile --quiet pyproject.toml --extra "$2" --extra dev --extra lm-eval \
        --overrides "requirements/$1.overrides" --python-version 3.11 --python-platform "$3-manylinux_2_35" \
        --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
        --output-file "requirements/$1.txt" "${@:4}"
}

for stack in cpu gpu cpu-0.9.4 {cpu,gpu}-0.9.10; do compile "$stack" "$stack" x86_64 "$@"; done
# aarch64: the versions of gpu.txt, less openrlhf, whose wheel has a tag of x86-64 (requirements/openrlhf.txt).
constraints=$(mktemp)
trap 'rm -f -- "$constraints"' EXIT
sed -n '/^openrlhf==/d; s/^\([^ #]*==[^ ]*\).*/\1/p' requirements/gpu.txt >"$constraints"
compile gpu-aarch64 gpu aarch64 requirements/openrlhf-dependencies.in --constraints "$constraints" "$@"
