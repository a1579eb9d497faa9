#!/usr/bin/env bash
# Make docs/report.png: the report of finished runs as headless Chromium shows it.
#
#   bash docs/screenshot_report.sh RUN [RUN …]        HEIGHT=1980 OUTPUT=docs/report.png
#
# Needs chromium on PATH (apt-get install chromium).
set -Eeuo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
OUTPUT="${OUTPUT:-$ROOT/docs/report.png}"
(($#)) || { printf 'usage: bash docs/screenshot_report.sh RUN [RUN …]\n' >&2; exit 2; }
command -v chromium >/dev/null || { printf 'found no chromium on PATH; apt-get install chromium\n' >&2; exit 1; }

scratch="$(mktemp -d)"
trap 'rm -rf -- "$scratch"' EXIT
"$ROOT/.venv/bin/python" -m rft.runs.report "$@" --output "$scratch/report.html"
chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$scratch/profile" \
    --window-size="1280,${HEIGHT:-1980}" --screenshot="$OUTPUT" "file://$scratch/report.html" 2>"$scratch/log" ||
    { cat -- "$scratch/log" >&2; exit 1; }
printf 'written: %s\n' "$OUTPUT"
