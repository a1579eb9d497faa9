# shellcheck shell=bash
# What every launcher shares: strict mode, run directory, phases, environment, the training command.
#
#   source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"      at the top of launch/train_*.sh
#   use models/NAME; use_recipe; use_cluster; use tasks/NAME  the presets: MODEL_ARGS, CLUSTER_ARGS, GRPO_ARGS
#   experiment "$@"               launch/pipeline.sh: the complete run; the user's options come last and win
#
# or, where model and data are made by the launcher, as in launch/tiny.sh, its steps: begin_run "$@"; phase NAME;
# setup_env; start_ray; run CMD ARG…; train_and_measure "$@".
#
# Environment: RUN_DIR (default runs/<launcher>/<UTC time>), RFT_STACK=cpu|gpu or a newer release of docs/overlay.md
# (default: gpu where nvidia-smi lists one; of tiny launchers cpu), CLUSTER=NAME of launch/clusters (of large GRPO
# launchers; default: by nvidia-smi), RAY_ADDRESS (GRPO: use that cluster and leave it running),
# DRY_RUN=1 (check the options, print the commands, touch nothing), PREFLIGHT=only (check, then end) or 0 (skip the
# checks), RESUMABLE=0 (keep no state for launch/resume.sh), SAVE_SECONDS (default 90: what a training has to save and
# stop after SIGTERM; 0: nothing), START_CODE_SERVER=1 (one for the run; tasks of programs do by themselves) on
# CODE_SERVER_PORT (default: a free one) or CODE_SERVER_URL (ask that one), likewise START_RETRIEVER, RETRIEVER_PORT and
# RETRIEVER_URL of tasks that search, with what launch/retriever.sh lists, and the places of docs/running.md:
# DATA_ROOT, MODEL_ROOT, OUTPUT_ROOT, CKPT_ROOT, METRICS_LOG_DIR, SAMPLES_LOG_DIR, SPIKE_LOG_PATH.
set -Eeuo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
EXP_NAME="$(basename -- "$0" .sh)"
PHASE=""
PHASE_START=0
RUN_IS_OURS=0   # 1 once begin_run has claimed RUN_DIR
STARTED_PIDS=() # processes of ours that outlive the command that started them
MODEL_ARGS=()
CLUSTER_ARGS=()
GRPO_ARGS=()

# shellcheck source=launch/usage.sh
source "$ROOT/launch/usage.sh" # sees the arguments of the launcher: one that asks for help ends here
flag DRY_RUN 0
flag RESUMABLE 1
flag ALLOW_CHANGED 0
flag MEASURE_ONLY 0
flag PREFLIGHT 1 only

# shellcheck source=launch/places.sh
source "$ROOT/launch/places.sh"
# shellcheck source=launch/stack.sh
source "$ROOT/launch/stack.sh"
# shellcheck source=launch/setup.sh
source "$ROOT/launch/setup.sh"
# shellcheck source=launch/ray.sh
source "$ROOT/launch/ray.sh"
# shellcheck source=launch/nodes.sh
source "$ROOT/launch/nodes.sh"
# shellcheck source=launch/service.sh
source "$ROOT/launch/service.sh"
# shellcheck source=launch/code_server.sh
source "$ROOT/launch/code_server.sh"
# shellcheck source=launch/retriever.sh
source "$ROOT/launch/retriever.sh"
# shellcheck source=launch/recipe.sh
source "$ROOT/launch/recipe.sh"
# shellcheck source=launch/cluster.sh
source "$ROOT/launch/cluster.sh"
# shellcheck source=launch/start.sh
source "$ROOT/launch/start.sh"
# shellcheck source=launch/pipeline.sh
source "$ROOT/launch/pipeline.sh"
# shellcheck source=launch/sft.sh
source "$ROOT/launch/sft.sh"
# shellcheck source=launch/tiny.sh
source "$ROOT/launch/tiny.sh"

# use models/NAME, use clusters/NAME: read a preset, which sets arrays only.
use() {
    local preset="$ROOT/launch/$1.env"
    [[ -r $preset ]] || die "no such preset" "$1" "$(cd "$ROOT/launch" && printf '%s ' ./*/*.env)" "correct the launcher"
    # shellcheck source=/dev/null
    source "$preset"
}

# measure_memory: from now on, keep the peak memory of all processes of this run in memory.json.
measure_memory() {
    [[ $DRY_RUN != 1 ]] || return 0
    "$PYTHON" -m rft.runs.memory "$RUN_DIR" &
    STARTED_PIDS+=("$!")
}

now_ms() { printf '%s' "$((${EPOCHREALTIME/[.,]/} / 1000))"; }
RUN_START=$(now_ms)

# phase NAME: print the time since the launch began, and close the phase before in phases.jsonl.
phase() {
    [[ $DRY_RUN != 1 ]] || return 0
    end_phase
    PHASE=$1 PHASE_START=$(now_ms)
    local elapsed=$(((PHASE_START - RUN_START) / 1000))
    printf '==> [%02d:%02d] %s\n' $((elapsed / 60)) $((elapsed % 60)) "$PHASE"
}

end_phase() {
    [[ -n $PHASE ]] || return 0
    local ms=$(($(now_ms) - PHASE_START))
    if [[ -d $RUN_DIR ]]; then
        printf '{"phase": "%s", "seconds": %d.%03d}\n' "$PHASE" $((ms / 1000)) $((ms % 1000)) >>"$RUN_DIR/phases.jsonl"
    fi
    PHASE=""
}

# print_command CMD ARG…: one line that a shell reads back as the same words.
print_command() {
    local line
    line=$(printf '%q ' "$@")
    printf '%s\n' "${line% }"
}

# run CMD ARG…: a step of the pipeline; a dry run prints it. It runs in the background, so that a signal to the
# launcher is handled at once, not after hours of training.
run() {
    if [[ $DRY_RUN == 1 ]]; then
        print_command "$@"
        return 0
    fi
    local status pid
    apart "$@" &
    pid=$!
    STARTED_PIDS+=("$pid")
    WAIT_AGAIN=1
    while ((WAIT_AGAIN)); do
        WAIT_AGAIN=0 status=0
        wait_to_save "$pid"
        wait "$pid" || status=$?
    done
    unset 'STARTED_PIDS[-1]'
    return "$status"
}

# run_logged LOG CMD ARG…: as `run`, with output on the terminal and in LOG.
run_logged() {
    local log=$1 out status=0
    shift
    if [[ $DRY_RUN == 1 ]]; then
        print_command "$@"
        return 0
    fi
    exec {out}> >(exec tee -ia -- "$log")
    TEE_PID=$!
    run "$@" >&"$out" 2>&1 || status=$?
    exec {out}>&-
    # tee ends with the last writer; one that was left behind must not hold up the launcher.
    for _ in {1..50}; do
        is_running "$TEE_PID" || break
        sleep 0.1
    done
    TEE_PID=""
    return "$status"
}

# shellcheck source=launch/ending.sh
source "$ROOT/launch/ending.sh"
choose_stack
export_environment
