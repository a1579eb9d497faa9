# shellcheck shell=bash
# The retriever that search agents ask (docs/retriever.md): one of this run's own, which starts and ends with the run, or
# one that somebody else started, on a node of its own where the index is large. Sourced by launch/common.sh.
#
#   START_RETRIEVER    1: start it (tasks that need one do); 0: none, or the one that runs at RETRIEVER_URL
#   RETRIEVER_URL      of a server that somebody else started and that this run shall ask; RETRIEVER_TOKEN is its token
#   RETRIEVER_PORT     its port; default: a free one
#   RETRIEVER_HOST     where it listens; default: the loopback, and with RAY_ADDRESS the address of this node by which that
#                      cluster reaches it (with a token, which is made here)
#   CORPUS             passages as JSON lines
#   RETRIEVER_INDEX    bm25 (the default) or dense; a dense one by
#   ENCODER            wordllama, or the folder of an encoder, and of the
#   RETRIEVER_KIND     flat, hnsw, or torch (on GPUs)
#   INDEX_DIR          where the index is kept; default: beside the corpus
#   RETRIEVER_GPUS     as CUDA_VISIBLE_DEVICES names them: GPUs of its own, which the training does not see. all: every one
#                      that it sees, beside the training. Unset: none

RETRIEVER_PID=""                    # of the one that this launch has started
RETRIEVER_PORT=${RETRIEVER_PORT:-}
RETRIEVER_CHOSEN=0 # 1 once use_retriever has been called
check_service RETRIEVER retriever

# use_retriever: for a task that searches; its GPUs are taken off here, before use_cluster chooses by what is left.
use_retriever() {
    RETRIEVER_CHOSEN=1
    use_service RETRIEVER retriever "a server that finds passages"
    RETRIEVER_INDEX=${RETRIEVER_INDEX:-bm25}
    [[ $RETRIEVER_INDEX == bm25 || $RETRIEVER_INDEX == dense ]] || die "no such index" \
        "RETRIEVER_INDEX=$RETRIEVER_INDEX" "bm25 or dense" "unset RETRIEVER_INDEX for bm25"
    [[ ${RETRIEVER_KIND:-flat} =~ ^(flat|hnsw|torch)$ ]] || die "no such index" \
        "RETRIEVER_KIND=$RETRIEVER_KIND" "flat, hnsw or torch" "unset RETRIEVER_KIND"
    python_module rft.agents || exit # a conversation's limits and address, before minutes of loading an index
    ((${START_RETRIEVER:-0})) || return 0
    [[ -n ${CORPUS:-} ]] || die "the retriever has no corpus" "no CORPUS" "a file of passages (docs/retriever.md)" \
        "set CORPUS=FILE.jsonl, or RETRIEVER_URL to a running retriever"
    CORPUS=$(absolute "$CORPUS")
    [[ -z ${ENCODER:-} || $ENCODER == wordllama ]] || ENCODER=$(absolute "$ENCODER")
    take_gpus
}

# complete_retriever: START_RETRIEVER=1 with a launcher whose task does not say so.
complete_retriever() {
    ((RETRIEVER_CHOSEN || !${START_RETRIEVER:-0})) || use_retriever
}

# take_gpus: RETRIEVER_GPUS out of what the training sees.
take_gpus() {
    local gpu own=",${RETRIEVER_GPUS:-}," here=() left=()
    [[ -n ${RETRIEVER_GPUS:-} && $RETRIEVER_GPUS != all && $STACK_KIND == gpu ]] || return 0
    [[ -z ${RAY_ADDRESS:-} ]] || die "GPUs of a cluster are Ray's to give" "RETRIEVER_GPUS and RAY_ADDRESS" \
        "one of the two" "start the retriever apart, where Ray has no GPU, and set RETRIEVER_URL to it (docs/running.md)"
    IFS=, read -r -a here <<<"${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null |
        paste -sd ,)}"
    for gpu in "${here[@]}"; do
        if [[ $own == *",$gpu,"* ]]; then own=${own/",$gpu,"/,}; else left+=("$gpu"); fi
    done
    if [[ $own != , || ${#left[@]} == 0 ]]; then
        [[ $DRY_RUN != 1 ]] || return 0 # a machine that only shows the command
        die "the retriever's GPUs are not here, or leave none" "RETRIEVER_GPUS=$RETRIEVER_GPUS, here: ${here[*]:-none}" \
            "some of them, and at least one for the training" "correct RETRIEVER_GPUS, or unset it: an index in memory"
    fi
    CUDA_VISIBLE_DEVICES=$(IFS=, && printf '%s' "${left[*]}")
    export CUDA_VISIBLE_DEVICES
}

# start_retriever: before Ray, whose workers inherit RETRIEVER_URL. Where the launch makes its corpus later, it is started
# by a second call once the corpus is there.
start_retriever() {
    local command
    complete_retriever
    if [[ $DRY_RUN == 1 && ${START_RETRIEVER:-0} == 1 ]]; then
        mapfile -d '' -t command < <(retriever_command)
        print_command "${command[@]}"
        return 0
    fi
    if starts_service RETRIEVER && [[ -z $RETRIEVER_PID ]]; then
        if [[ -z ${RETRIEVER_URL:-} ]]; then address_service RETRIEVER "$(retriever_host)"; fi
        if [[ -f $CORPUS ]]; then begin_retriever; fi
    fi
    [[ -z ${RETRIEVER_URL:-} ]] || ask_directly
}

# require_corpus: what the retriever of this run reads.
require_corpus() {
    local bin=.venv/bin
    complete_retriever
    [[ -x $PYTHON ]] || bin="make setup && $bin"
    ((${START_RETRIEVER:-0})) || return 0
    [[ -f $CORPUS ]] || die "no corpus" "no file $CORPUS" "passages as JSON lines (docs/retriever.md)" \
        "CORPUS=FILE.jsonl, or RETRIEVER_URL of a running retriever; wiki-18: \
$bin/hf download --repo-type dataset PeterJinGo/wiki-18-corpus wiki-18.jsonl.gz --local-dir . && \
$bin/python -m rft.data corpus wiki-18.jsonl.gz --out $(printf %q "$CORPUS")"
    [[ $RETRIEVER_INDEX != dense || -z ${ENCODER:-} || $ENCODER == wordllama || -d $ENCODER ]] ||
        die "no encoder" "no folder $ENCODER" "a model of sentence-transformers" "ENCODER=wordllama, or \
$bin/hf download intfloat/e5-base-v2 --local-dir $(printf %q "$ENCODER")"
}

# retriever_host: the address that it listens on.
retriever_host() {
    local place=${RAY_ADDRESS:-127.0.0.1}
    if [[ -n ${RETRIEVER_HOST:-} ]]; then
        printf '%s\n' "$RETRIEVER_HOST"
        return 0
    fi
    place=${place#*://}
    [[ $place != auto ]] || place=192.0.2.1 # of documentation, RFC 5737: by the default route. Nothing is sent there
    "$PYTHON" -c 'import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 9))
print(s.getsockname()[0])' "${place%:*}"
}

begin_retriever() {
    local host command devices=()
    host=$(host_of "$RETRIEVER_URL")
    if [[ $host != 127.* && -z ${RETRIEVER_TOKEN:-} ]]; then
        RETRIEVER_TOKEN=$("$PYTHON" -c 'import secrets; print(secrets.token_urlsafe())')
    fi
    [[ -z ${RETRIEVER_TOKEN:-} ]] || export RETRIEVER_TOKEN
    # An encoder takes each GPU that it sees, also one that is full of the training.
    [[ ${RETRIEVER_GPUS:-} == all ]] || devices=(env CUDA_VISIBLE_DEVICES="${RETRIEVER_GPUS:-}")
    mapfile -d '' -t command < <(retriever_command)
    begin_service RETRIEVER "${devices[@]}" "${command[@]}" --host "$host" --port "$RETRIEVER_PORT"
    export RETRIEVER_PID # for the preflight
}

# retriever_command: its words without the address, a NUL behind each.
retriever_command() {
    local more=()
    if [[ $RETRIEVER_INDEX == dense ]]; then
        more+=(${ENCODER:+--encoder "$ENCODER"} ${RETRIEVER_KIND:+--kind "$RETRIEVER_KIND"})
    fi
    more+=(${INDEX_DIR:+--index-dir "$(absolute "$INDEX_DIR")"})
    printf '%s\0' "$PYTHON" -m rft.retriever --corpus "$CORPUS" --index "$RETRIEVER_INDEX" "${more[@]}"
}

# ask_directly: hand the address on, and no proxy between, whatever asks. An exact host: not all programs know patterns.
ask_directly() {
    local host hosts=${no_proxy:-${NO_PROXY:-}}
    host=$(host_of "$RETRIEVER_URL")
    [[ ",$hosts," == *",$host,"* ]] || hosts+=${hosts:+,}$host
    export RETRIEVER_URL no_proxy=$hosts NO_PROXY=$hosts # programs know one of the two, or prefer one
}

# host_of URL: its host, without port and brackets.
host_of() {
    [[ $1 =~ ^[a-z]+://(\[([^]]+)\]|([^:/]+)) ]] || die "RETRIEVER_URL is no address" "$1" "http://HOST:PORT" "correct it"
    printf '%s\n' "${BASH_REMATCH[2]:-${BASH_REMATCH[3]}}"
}

# wait_for_retriever: until it has its index and answers; it must hold what the run began with, where that is resumed.
wait_for_retriever() {
    # Not started for want of a corpus: nothing will ever answer.
    if starts_service RETRIEVER && [[ -z $RETRIEVER_PID ]]; then require_corpus; fi
    wait_for_service RETRIEVER --run-dir "$RUN_DIR"
}

stop_retriever() { stop_service RETRIEVER retriever; }
