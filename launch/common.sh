# shellcheck shell=bash
# What every launcher shares: strict mode, run directory, phases, environment, the training command.
#
#   source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"      at the top of launch/train_*.sh
#   use models/NAME; use_recipe; use_cluster; use tasks/NAME  the presets: MODEL_ARGS, CLUSTER_ARGS, GRPO_ARGS
#   experiment "$@"               launch/pipeline.sh: the complete run; the user's options come last and win
#
# or, where model and data are made by the launcher, its steps: begin_run "$@"; phase NAME; setup_env; start_ray;
# run CMD ARG…; train_and_measure "$@".
#
# Environment: RUN_DIR (default runs/<launcher>/<UTC time>), RFT_STACK=cpu|gpu (default: gpu where nvidia-smi lists
# one), CLUSTER=NAME of launch/clusters (default: by nvidia-smi), RAY_ADDRESS (use that cluster and leave it running),
# DRY_RUN=1 (print the commands, touch nothing), PREFLIGHT=0 (skip the checks), and the places of docs/running.md:
# DATA_ROOT, MODEL_ROOT, OUTPUT_ROOT, CKPT_ROOT, METRICS_LOG_DIR, SAMPLES_LOG_DIR, SPIKE_LOG_PATH.
set -Eeuo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
EXP_NAME="$(basename -- "$0" .sh)"
PYTHON="$ROOT/.venv/bin/python"
DRY_RUN="${DRY_RUN:-0}"
PHASE=""
PHASE_START=0
RUN_IS_OURS=0   # 1 once begin_run has claimed RUN_DIR
RESUMES=0       # 1 where RUN_DIR holds the run to resume
STARTED_PIDS=() # processes of ours that outlive the command that started them
MODEL_ARGS=()
CLUSTER_ARGS=()
GRPO_ARGS=()

# die WHAT FOUND WANTED REPAIR: one message, exit 1.
die() {
    printf 'error: %s\n  found:  %s\n  wanted: %s\n  repair: %s\n' "$@" >&2
    exit 1
}

# shellcheck source=launch/places.sh
source "$ROOT/launch/places.sh"
# shellcheck source=launch/setup.sh
source "$ROOT/launch/setup.sh"
# shellcheck source=launch/ray.sh
source "$ROOT/launch/ray.sh"
# shellcheck source=launch/recipe.sh
source "$ROOT/launch/recipe.sh"
# shellcheck source=launch/cluster.sh
source "$ROOT/launch/cluster.sh"
# shellcheck source=launch/pipeline.sh
source "$ROOT/launch/pipeline.sh"

detect_stack() {
    STACK_GIVEN=${RFT_STACK:-} # who asks for the CPU gets its preset too, see use_cluster
    if [[ -z ${RFT_STACK:-} ]]; then
        RFT_STACK=cpu
        # No pipe: one that stops reading at the first GPU can end nvidia-smi with SIGPIPE, and with it this machine's GPUs.
        if command -v nvidia-smi >/dev/null && [[ $(nvidia-smi -L 2>/dev/null) == *"GPU "[0-9]*:* ]]; then RFT_STACK=gpu; fi
    fi
    [[ $RFT_STACK == cpu || $RFT_STACK == gpu ]] ||
        die "unknown stack" "RFT_STACK=$RFT_STACK" "cpu or gpu" "unset RFT_STACK"
    export RFT_STACK
}

# Set before Ray starts: its workers inherit them.
export_environment() {
    # Bytecode that set-up left out is written at first import, so that only one process compiles it.
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"
    export TRANSFORMERS_OFFLINE="${TRANSFORMERS_OFFLINE:-1}" VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
    if [[ $RFT_STACK == cpu ]]; then
        # Without TORCH_COMPILE_DISABLE the first vLLM generation probes the CPU with a C++ compiler for a minute.
        export DS_ACCELERATOR=cpu VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
        export VLLM_CPU_OMP_THREADS_BIND=nobind TORCH_COMPILE_DISABLE=1
        # Rollout and training take turns, so both may use two cores; a thread that waits must sleep, not spin.
        export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-0}"
    fi
}

# begin_run [OPENRLHF OPTION…]: read the training command, and make the run directory. One that holds anything is refused,
# since a run owns its directory; with --load_checkpoint one that holds a run is resumed.
begin_run() {
    grpo_command "$@"
    [[ $DRY_RUN != 1 ]] || return 0
    if [[ -n ${OPTION[load_checkpoint]} && -f $RUN_DIR/run.json ]]; then
        RESUMES=1
        require_resumable
    else
        [[ ! -e $RUN_DIR || -d $RUN_DIR && -z "$(ls -A -- "$RUN_DIR")" ]] ||
            die "the run directory is taken" "$RUN_DIR, not empty" "a new or empty folder" \
                "choose another one with RUN_DIR=…, or move this one away; to resume a run: --load_checkpoint"
        require_free_places
    fi
    claim_run_dir
    # Ray's workers inherit all four; the first marks every process of this run, see rft.runs.memory.
    export RFT_RUN_DIR="$RUN_DIR" METRICS_LOG_DIR SAMPLES_LOG_DIR SPIKE_LOG_PATH
    ((RESUMES)) || each_place link_place
    RUN_IS_OURS=1
}

# claim_run_dir: by a lock that this launch and what it starts hold as long as they live; two launches never share one.
claim_run_dir() {
    local lock
    { mkdir -p -- "$RUN_DIR" && exec {lock}>>"$RUN_DIR/phases.jsonl"; } ||
        die "cannot make the run directory" "$RUN_DIR, see above" "a folder that this launch can make" "choose another RUN_DIR"
    flock -n "$lock" || die "the run directory is taken" "$RUN_DIR, which another launch is using" \
        "one launch at a time" "choose another one with RUN_DIR=…, or wait for that launch"
    printf 'run directory: %s\n' "$RUN_DIR"
}

# require_resumable: the run of RUN_DIR has ended, and is resumed in the paths where it wrote before.
require_resumable() {
    local left
    left=$(left_of_run | paste -sd ' ')
    [[ -z $left ]] || die "the run has not ended" "processes $left of $RUN_DIR" "none" "wait for them, or stop them"
    each_place require_same_place
}

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
    local status=0
    "$@" &
    STARTED_PIDS+=("$!")
    wait "$!" || status=$?
    unset 'STARTED_PIDS[-1]'
    return "$status"
}

# run_logged LOG CMD ARG…: as `run`, with output on the terminal and in LOG.
run_logged() {
    local log=$1 out tee_pid status=0
    shift
    if [[ $DRY_RUN == 1 ]]; then
        print_command "$@"
        return 0
    fi
    exec {out}> >(exec tee -ia -- "$log")
    tee_pid=$!
    run "$@" >&"$out" 2>&1 || status=$?
    exec {out}>&-
    # tee ends with the last writer; one that was left behind must not hold up the launcher.
    for _ in {1..50}; do
        is_running "$tee_pid" || break
        sleep 0.1
    done
    return "$status"
}

on_exit() {
    local status=$?
    trap - EXIT ERR
    # A second signal must not leave processes behind, nor a message to a tee that the first one has ended.
    trap '' INT TERM HUP PIPE
    set +e
    end_phase
    stop_started
    stop_ray "$status"
    if ((RUN_IS_OURS)); then end_orphans; fi
    exit "$status"
}

# stop_started: end the commands that still run, with their children; nothing else.
stop_started() {
    local pid
    for pid in "${STARTED_PIDS[@]}"; do stop_tree "$pid" 10; done
    STARTED_PIDS=()
}

trap on_exit EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
detect_stack
export_environment
