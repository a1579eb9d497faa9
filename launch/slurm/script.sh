# shellcheck shell=bash
# The job script: directives, the values that it needs, and the functions of nodes.sh with train.sh or smoke.sh behind them.
# It names every path in full and reads nothing of the checkout but the launcher: Slurm runs a copy from its spool, where
# BASH_SOURCE leads nowhere, and the preset may change while a job waits. Sourced by launch/slurm.sh.

SECRETS=(WANDB_API_KEY HF_TOKEN RETRIEVER_TOKEN CODE_SERVER_TOKEN) # go by name, never into a file

# write_script BODY: on stdout.
write_script() {
    local name
    printf '#!/bin/bash -l\n' # a login shell, which has the function `module`
    directives
    printf '# Written by launch/slurm.sh. Values first, then %s.\n' "launch/slurm/{nodes,ray_nodes,$1}.sh"
    for name in ROOT PYTHON RFT_STACK JOB_FOLDER JOB_MODULES JOB_PROXY_MODULE JOB_INTERFACE JOB_SCRATCH RETRIEVER_PLACE \
        NODE_CPUS NODE_GPUS GPUS_PER_NODE NETWORK SLURM_PROGRAMS; do
        printf '%s=%q\n' "$name" "${!name:-}"
    done
    printf_array JOB_ENV
    case $1 in
    train)
        for name in RUN_DIR START_DIR LAUNCHER MAX_JOB_CHAINS STOP_SECONDS; do printf '%s=%q\n' "$name" "${!name}"; done
        printf_array OPTIONS
        printf_array GIVEN
        printf_array GIVEN_AGAIN
        printf_array RETRIEVER_COMMAND
        ;;
    smoke)
        printf 'RETRIEVER_URL=%q RETRIEVER_PORT=%q\n' "${RETRIEVER_URL:-}" "${RETRIEVER_PORT:-}"
        printf 'export RETRIEVER_URL\n'
        printf_array PLACES
        ;;
    esac
    declare -f die
    sed '/^# shellcheck /d' "$ROOT"/launch/slurm/{nodes,ray_nodes,"$1"}.sh
}

# printf_array NAME: an assignment that a shell reads back.
printf_array() {
    local -n words=$1
    printf '%s=(' "$1"
    ((${#words[@]} == 0)) || printf ' %q' "${words[@]}"
    printf ' )\n'
}

directives() {
    local name option names
    directive job-name "$JOB_NAME"
    directive output "$JOB_FOLDER/%j.log"
    directive open-mode append
    directive nodes "$NODES"
    directive ntasks-per-node 1
    for name in CPUS_PER_TASK MEM_PER_NODE GRES TIMELIMIT PARTITION ACCOUNT QOS RESERVATION CONSTRAINT EXCLUDE; do
        option=SBATCH_$name
        case $name in
        MEM_PER_NODE) directive mem "${!option:-}" ;;
        TIMELIMIT) directive time "${!option:-}" ;;
        *)
            name=${name,,}
            directive "${name//_/-}" "${!option:-}"
            ;;
        esac
    done
    if ((SBATCH_EXCLUSIVE)); then printf '#SBATCH --exclusive\n'; fi
    [[ -z ${STOP_SIGNAL:-} ]] || directive signal "$STOP_SIGNAL"
    # A job that has lost a node lives long enough to say which, and is not begun again on others without being asked.
    printf '#SBATCH --no-requeue\n#SBATCH --no-kill\n'
    names=$(for name in "${SECRETS[@]}"; do [[ -z ${!name:-} ]] || printf '%s,' "$name"; done)
    directive export "${names:-NONE,}" # what a job does must not depend on the shell that it was submitted from
}

directive() {
    local value=${2%,}
    [[ -z $value ]] || printf '#SBATCH --%s=%s\n' "$1" "$value"
}

# job_values: what both kinds of script need, after read_preset.
job_values() {
    [[ $JOB_FOLDER =~ ^[A-Za-z0-9._/+=@:,-]+$ ]] || die "unusable name of a folder" "$JOB_FOLDER" \
        "a path of letters, digits and ._/+=@:,- as sbatch reads it" "choose another RUN_DIR"
    [[ -n ${RFT_STACK:-} ]] || RFT_STACK=gpu # a login node has none, the compute nodes do
    choose_stack
    SLURM_PROGRAMS=$(dirname -- "$(command -v sbatch)" 2>/dev/null) || SLURM_PROGRAMS=""
    [[ $SLURM_PROGRAMS != . ]] || SLURM_PROGRAMS=""
}

# given_variables: NAME=VALUE of what the user has set and a launcher reads: into GIVEN what launch.json keeps of a start
# (rft/runs/launched.py), which a resume takes from there; into GIVEN_AGAIN what it does not.
given_variables() {
    local name names
    names=$(PYTHONPATH=$ROOT "$(find_python)" -B -c 'from rft.runs.launched import NAMES; print(*NAMES)') || exit
    GIVEN=() GIVEN_AGAIN=()
    for name in $names; do
        [[ $name == RFT_STACK || -z ${!name:-} ]] || GIVEN+=("$name=${!name}")
    done
    for name in PREFLIGHT STALL_LIMIT CODE_SERVER_URL CODE_SERVER_PORT RETRIEVER_URL RETRIEVER_PORT SAVE_SECONDS; do
        [[ -z ${!name:-} ]] || GIVEN_AGAIN+=("$name=${!name}")
    done
}

# retriever_words: into RETRIEVER_COMMAND, the server of a node of its own, as launch/retriever.sh starts it.
retriever_words() {
    RETRIEVER_COMMAND=()
    [[ $RETRIEVER_PLACE != none ]] || return 0
    [[ -n ${CORPUS:-} ]] || die "the retriever has no corpus" "no CORPUS" "a file of passages (docs/retriever.md)" \
        "set CORPUS=FILE.jsonl, or RETRIEVER_PLACE=none"
    [[ $DRY_RUN == 1 || -f $CORPUS ]] || die "no corpus" "no file $CORPUS" "passages as JSON lines (docs/retriever.md)" \
        "correct CORPUS"
    RETRIEVER_COMMAND=("$PYTHON" -m rft.retriever --corpus "$(realpath -ms -- "$CORPUS")" --index "${RETRIEVER_INDEX:-bm25}")
    if [[ ${RETRIEVER_INDEX:-bm25} == dense ]]; then
        RETRIEVER_COMMAND+=(${ENCODER:+--encoder "$ENCODER"} ${RETRIEVER_KIND:+--kind "$RETRIEVER_KIND"})
    fi
    RETRIEVER_COMMAND+=(${INDEX_DIR:+--index-dir "$(realpath -ms -- "$INDEX_DIR")"})
}
