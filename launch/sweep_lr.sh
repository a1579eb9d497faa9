#!/usr/bin/env bash
# Which learning rate? One launcher at several rates and at 0, the control, with the same seed: a run each, one after the
# other, below one directory, and a page of paired verdicts of each against the control and against each other.
# Hardware and time: those of the launcher, a run for each rate and the control.
#
#   bash launch/sweep_lr.sh [LAUNCHER.sh] [OPENRLHF OPTION …]      RATES='1e-5 2e-5 4e-5 1e-4' SEED=42 RUN_DIR=runs/…
#   RATES='1e-3 3e-3' bash launch/sweep_lr.sh launch/train_grpo_tiny.sh      without a GPU, about 5 minutes a run
#
# LAUNCHER: launch/train_grpo_20b.sh, with RECIPE=tuned unless RECIPE is set. The same command with RUN_DIR goes on where
# a sweep ended: rates with a result are not run again, a failed one is. DRY_RUN=1 prints the commands, PREFLIGHT=only
# checks each run in RUN_DIR/preflight and trains none.
# RUN_DIR/verdicts.md has the verdicts, RUN_DIR/comparison.html the curves over each other. Exit status 1: a run failed.
elsewhere="${OUTPUT_ROOT:-}${CKPT_ROOT:-}${METRICS_LOG_DIR:-}${SAMPLES_LOG_DIR:-}${SPIKE_LOG_PATH:-}"
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
export SAVE_SECONDS=0 # a run that is cut off begins anew

launcher=$ROOT/launch/train_grpo_20b.sh
if [[ ${1:-} == *.sh ]]; then
    launcher=$(absolute "$1")
    shift
fi
[[ -f $launcher && $launcher == "$ROOT"/launch/train_*.sh ]] ||
    die "no such launcher" "$launcher" "one of $(cd "$ROOT" && echo launch/train_*.sh)" "correct the path"
[[ -z $elsewhere ]] || die "a sweep's runs keep everything in their directories" \
    "OUTPUT_ROOT, CKPT_ROOT, METRICS_LOG_DIR, SAMPLES_LOG_DIR or SPIKE_LOG_PATH" "none of them" \
    "unset them, and name another disk by RUN_DIR=…"
[[ " $* " != *" --actor_learning_rate"* ]] ||
    die "the sweep sets the learning rate" "--actor_learning_rate" "RATES" "RATES='1e-5 2e-5' without that option"

# The rates, each once; the control comes first, since every verdict needs it.
rates=(0)
declare -A seen=()
for rate in ${RATES-1e-5 2e-5 4e-5 1e-4}; do
    [[ $rate =~ ^([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$ ]] ||
        die "a rate is not a number" "$rate in RATES" "numbers with blanks between, as 1e-5" "correct RATES"
    number=$(printf '%g' "$rate")
    [[ $number != 0 && -z ${seen[$number]:-} ]] || continue
    seen[$number]=1
    rates+=("$rate")
done
((${#rates[@]} > 1)) || die "nothing to compare" "RATES='${RATES-}'" "one rate above 0 or more" "RATES='1e-5 2e-5'"

# one_run RATE CMD…: the launcher's command at this rate behind CMD, with the run's own directory. RFT_STACK is as the
# user gave it: set, it would choose a cluster's preset.
one_run() {
    local rate=$1
    shift
    "$@" env RUN_DIR="$below/lr_$rate" RECIPE="$recipe" RFT_STACK="$STACK_GIVEN" \
        bash "$launcher" "${words[@]}" --actor_learning_rate "$rate"
}
words=("$@")
below=$RUN_DIR
recipe=${RECIPE:-}
if [[ -z $recipe ]] && grep -q '^use_recipe$' "$launcher"; then recipe=tuned; fi

# What the launcher refuses ends the sweep before anything is made.
DRY_RUN=1 one_run 0 env >/dev/null ||
    die "the launcher refuses this command" "see above" "a command that ${launcher#"$ROOT"/} takes" "correct it"
if [[ $DRY_RUN == 1 ]]; then
    for rate in "${rates[@]}"; do one_run "$rate" print_command; done
    print_command "$PYTHON" -m rft.runs.sweep "$RUN_DIR"
    exit 0
fi

# A directory holds one sweep: runs of other settings would be compared as if the rate alone differed.
asked=$(print_command "${launcher#"$ROOT"/}" "SEED=${SEED:-}" "RECIPE=$recipe" "EFFORT=${EFFORT:-}" "${words[@]}")
mkdir -p -- "$RUN_DIR"
exec {lock}>>"$RUN_DIR/sweep.lock"
flock -n "$lock" || die "the sweep's directory is taken" "$RUN_DIR, which another sweep is using" "one at a time" \
    "wait for it, or choose another RUN_DIR"
[[ -f $RUN_DIR/sweep.txt || -z "$(find "$RUN_DIR" -mindepth 1 ! -name sweep.lock -print -quit)" ]] ||
    die "the sweep's directory is taken" "$RUN_DIR, which holds something else" "a new folder, or a sweep's" \
        "choose another RUN_DIR"
[[ ! -f $RUN_DIR/sweep.txt || $(<"$RUN_DIR/sweep.txt") == "$asked" ]] || die "another sweep is in this directory" \
    "$(<"$RUN_DIR/sweep.txt")" "$asked" "the first command again, or another RUN_DIR"
printf '%s\n' "$asked" >"$RUN_DIR/sweep.txt"
printf 'sweep directory: %s\n' "$RUN_DIR"

if [[ $PREFLIGHT == only ]]; then
    below=$RUN_DIR/preflight refused=()
    for rate in "${rates[@]}"; do
        printf '==> learning rate %s\n' "$rate"
        one_run "$rate" run || refused+=("$rate")
    done
    ((${#refused[@]} == 0)) || die "${#refused[@]} of ${#rates[@]} runs cannot start" "learning rate ${refused[*]}" \
        "go for each" "what the pages above say, then the same command with RUN_DIR=$RUN_DIR"
    printf 'PREFLIGHT=only: nothing is trained; the same command without it trains in %s\n' "$RUN_DIR"
    exit 0
fi

failed=()
finished=()
for rate in "${rates[@]}"; do
    place=$RUN_DIR/lr_$rate
    if [[ -f $place/result.json ]]; then
        printf '==> learning rate %s: has a result\n' "$rate"
        finished+=("$place")
        continue
    fi
    if [[ -d $place ]]; then
        former=$RUN_DIR/failed/$(date -u +%Y%m%dT%H%M%SZ)_lr_$rate
        mkdir -p -- "$RUN_DIR/failed"
        mv -- "$place" "$former"
        printf 'a former try without a result is now in %s\n' "$former"
    fi
    printf '==> learning rate %s\n' "$rate"
    status=0
    one_run "$rate" run || status=$?
    # A run that a rule stopped has a result too.
    if [[ -f $place/result.json ]]; then
        finished+=("$place")
    elif [[ -d $place ]]; then
        failed+=("$rate")
        printf 'error: learning rate %s has no result, exit status %d; the others go on\n' "$rate" "$status" >&2
    else
        die "no run could be started" "see above" "a machine, a model and data for ${launcher#"$ROOT"/}" \
            "what it says, then the same command with RUN_DIR=$RUN_DIR"
    fi
done

if ((${#finished[@]} > 1)); then
    run "$PYTHON" -m rft.runs.report "${finished[@]}" --output "$RUN_DIR/comparison.html"
    run "$PYTHON" -m rft.runs.sweep "$RUN_DIR"
fi
((${#failed[@]} == 0)) || die "${#failed[@]} of ${#rates[@]} runs have no result" "learning rate ${failed[*]}" \
    "a result of each" "read their messages above, then the same command with RUN_DIR=$RUN_DIR"
