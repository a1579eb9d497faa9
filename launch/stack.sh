# shellcheck shell=bash disable=SC2034  # read by the others
# Which of the stacks a launch takes, its environment's place, and what the stack reads. Sourced by launch/common.sh.

# choose_stack: RFT_STACK=cpu|gpu, else gpu where nvidia-smi lists one; cpu-VERSION, of a newer OpenRLHF, where
# requirements/ has it. Each stack has an environment of its own, which a launch names by its own path, so that nothing
# changes under a run when the link .venv comes to name another one. STACK_KIND is cpu or gpu.
choose_stack() {
    STACK_GIVEN=${RFT_STACK:-} # who asks for the CPU gets its preset too, see use_cluster
    if [[ -z ${RFT_STACK:-} ]]; then
        RFT_STACK=cpu
        # No pipe: one that stops reading at the first GPU can end nvidia-smi with SIGPIPE, and with it this machine's GPUs.
        if command -v nvidia-smi >/dev/null && [[ $(nvidia-smi -L 2>/dev/null) == *"GPU "[0-9]*:* ]]; then RFT_STACK=gpu; fi
    fi
    STACK_KIND=${RFT_STACK%%-*}
    [[ $RFT_STACK =~ ^[cg]pu$ || $RFT_STACK =~ ^[cg]pu-[0-9.]+$ && -r $ROOT/requirements/$RFT_STACK.txt ]] ||
        die "unknown stack" "RFT_STACK=$RFT_STACK" "one of $(known_stacks)" "unset RFT_STACK"
    export RFT_STACK
    VENV="$ROOT/.venv-$RFT_STACK"
    # An environment of the user, or of before there were two; never that of a stack with a version, which would put
    # its release over the pin there.
    if [[ $RFT_STACK == "$STACK_KIND" ]] && is_environment "$ROOT/.venv" && [[ $(stack_of "$ROOT/.venv") == "$RFT_STACK" ]]; then
        VENV="$ROOT/.venv"
    fi
    PYTHON="$VENV/bin/python"
}

# known_stacks: those that requirements/ has, in one line.
known_stacks() {
    local file
    for file in "$ROOT"/requirements/[cg]pu{,-[0-9]*}.txt; do basename -- "$file" .txt; done | paste -sd ' '
}

# is_environment FOLDER: whether .venv is there and not the link that set-up makes.
is_environment() {
    [[ -e $1 && $(readlink -- "$1") != .venv-[cg]pu ]]
}

# stack_of FOLDER: the stack that set-up has installed there; the chosen one in an environment that it has not made.
stack_of() {
    local stamp=""
    [[ ! -f $1/.rft-setup ]] || read -r stamp <"$1/.rft-setup" || true
    if [[ $stamp =~ ^"stack "([cg]pu[-0-9.]*)"," ]]; then printf '%s' "${BASH_REMATCH[1]}"; else printf '%s' "$RFT_STACK"; fi
}

# export_environment: before Ray starts, whose workers inherit it. The values that launch/stack.env lists give way to
# those that are set; rft.record.environment reads the same file for commands that are not started by a launcher.
export_environment() {
    local stack variable name
    # Bytecode that set-up left out is written at first import, so that only one process compiles it.
    unset PYTHONDONTWRITEBYTECODE
    flag HF_HUB_OFFLINE 1 # which the hub's library would take for no where it cannot read it
    flag TRANSFORMERS_OFFLINE 1
    export HF_HUB_OFFLINE TRANSFORMERS_OFFLINE
    while read -r stack variable; do
        [[ $stack == all || $stack == "$STACK_KIND" ]] || continue
        name=${variable%%=*}
        [[ -n ${!name:-} ]] || export "${variable?}"
    done <"$ROOT/launch/stack.env"
}
