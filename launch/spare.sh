#!/usr/bin/env bash
# Keep a spare machine in step with this one, and run evaluations there while this one trains.
# Needs ssh, git and rsync here; a POSIX account with bash, git, rsync and tmux there. Nothing is configured there.
#
#   bash launch/spare.sh sync-code               the commits that the spare lacks; fast-forward only
#   bash launch/spare.sh sync-data               the git-ignored files of DATA_ROOT
#   bash launch/spare.sh sync-adapter PATH       an adapter, and the run.json beside it, to the same place there
#   bash launch/spare.sh verify                  commit, data, versions, tree_id; names each difference, exit status 1
#   bash launch/spare.sh run NAME CMD [ARG …]    in a tmux session, from SPARE_ROOT, with .venv/bin on PATH
#   bash launch/spare.sh tail NAME [LINES]       end of its log, and whether it runs or how it ended
#
# Environment: SPARE=user@host or an ssh alias; SPARE_SSH (default: ssh; words quoted as in a shell, such as
# "ssh -p 2222 -i 'my key'"); SPARE_ROOT (checkout there; default: this one's path); DATA_ROOT, SPARE_DATA_ROOT,
# SPARE_PYTHON (default: SPARE_ROOT/.venv/bin/python), SPARE_JOBS (logs; default: SPARE_ROOT/runs/spare);
# DRY_RUN=1 prints the commands and contacts nothing.
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh" "${1:-}" # --help behind `run NAME CMD` is the command's
# shellcheck source=launch/spare_remote.sh
source "$ROOT/launch/spare_remote.sh"

configure() {
    local name words
    [[ -n ${SPARE:-} && $SPARE != -* ]] || die "no spare machine" "SPARE=${SPARE:-}" \
        "user@host, or an alias of your ssh" "SPARE=user@host bash launch/spare.sh …"
    # xargs splits as a shell would, and expands nothing.
    words=$(xargs -n 1 printf '%s\n' <<<"${SPARE_SSH:-ssh}" 2>/dev/null) || die "SPARE_SSH cannot be read" \
        "SPARE_SSH=$SPARE_SSH" "a command, its words quoted as in a shell" "close its quotes"
    mapfile -t SSH <<<"$words"
    # A question for a password or an unknown host would hang a script; SPARE_SSH comes first and wins.
    SSH+=(-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=30 -o LogLevel=ERROR)
    SPARE_ROOT="${SPARE_ROOT:-$ROOT}"
    DATA_ROOT="${DATA_ROOT:-$ROOT/.cache/rft/data}"
    [[ $DATA_ROOT == /* ]] || DATA_ROOT="$PWD/$DATA_ROOT"
    SPARE_DATA_ROOT="${SPARE_DATA_ROOT:-$(place_there "$DATA_ROOT")}"
    SPARE_PYTHON="${SPARE_PYTHON:-$SPARE_ROOT/.venv/bin/python}"
    SPARE_JOBS="${SPARE_JOBS:-$SPARE_ROOT/runs/spare}"
    for name in SPARE_ROOT SPARE_DATA_ROOT SPARE_JOBS; do
        [[ ${!name} == /* ]] || die "$name is not absolute" "$name=${!name}" "a path from / on" "write it in full"
    done
}

# place_there PATH: where a path of this machine is on the spare: below SPARE_ROOT what is below the checkout.
place_there() {
    if [[ $1/ == "$ROOT"/* ]]; then printf '%s' "$SPARE_ROOT${1#"$ROOT"}"; else printf '%s' "$1"; fi
}

# on_spare FUNCTION ARG…: run a function of spare_remote.sh there, on our stdin. The function travels as text on stdin
# before our data, so that no login shell has to read our quotes.
on_spare() {
    local script size errors status=0
    if [[ $DRY_RUN == 1 ]]; then
        print_command "${SSH[@]}" "$SPARE" "$@"
        return 0
    fi
    script=$(printf 'set -Eeuo pipefail\n' && declare -f die print_command "$1" && print_command "$@")
    size=$(printf '%s' "$script" | wc -c)
    {
        errors=$(
            { printf '%s' "$script" && cat; } |
                "${SSH[@]}" -T -- "$SPARE" "bash -c 'eval \"\$(head -c $size)\"'" 2>&1 >&3
        ) || status=$?
    } 3>&1
    ((status != 255)) || die "ssh cannot reach the spare" "$SPARE: ${errors//$'\n'/; }" "a login without a prompt" \
        "try it by hand: $(print_command "${SSH[@]}" "$SPARE" true)"
    if [[ -n $errors ]]; then printf '%s\n' "$errors" >&2; fi
    return "$status"
}

# send FOLDER RSYNC-ARGUMENT…: rsync into a folder there, which is made; each file appears whole, a link as what it
# points to.
send() {
    local folder=$1 word shell=() status=0 output
    shift
    # rsync splits the command at blanks; inside its quotes a doubled quote means one.
    for word in "${SSH[@]}"; do shell+=("'${word//\'/\'\'}'"); done
    local command=(rsync -rLpts --stats --human-readable -e "${shell[*]}" "$@" "$SPARE:$folder/")
    if [[ $DRY_RUN == 1 ]]; then
        on_spare spare_make_folder "$folder"
        print_command "${command[@]}"
        return 0
    fi
    on_spare spare_make_folder "$folder" </dev/null
    output=$("${command[@]}" 2>&1) || status=$?
    ((status == 0)) || die "the transfer failed" "rsync, exit status $status: ${output//$'\n'/; }" "every file there" \
        "correct that and run it again; what has arrived is not sent twice"
    grep -E '^(Number of regular files transferred|Total transferred)' <<<"$output"
}

sync_code() {
    local branch commit tips tip haves=()
    branch=$(git -C "$ROOT" symbolic-ref -q --short HEAD) ||
        die "not on a branch" "a detached HEAD" "a branch, which the spare follows" "git switch BRANCH"
    commit=$(git -C "$ROOT" rev-parse HEAD)
    if [[ -n $(git -C "$ROOT" status --porcelain) ]]; then
        printf 'note: uncommitted changes are not sent\n' >&2
    fi
    tips=$(on_spare spare_tips "$SPARE_ROOT" </dev/null)
    if [[ $DRY_RUN == 1 ]]; then
        printf '%s\n' "$tips"
        printf '%s | ' "$(print_command git -C "$ROOT" bundle create --quiet - "$branch" '^TIP…')"
        on_spare spare_receive "$SPARE_ROOT" "$branch" "$commit"
        return 0
    fi
    for tip in $tips; do
        if git -C "$ROOT" cat-file -e "$tip^{commit}" 2>/dev/null; then haves+=("^$tip"); fi
    done
    if [[ -n $(git -C "$ROOT" rev-list --max-count=1 "$commit" "${haves[@]}") ]]; then
        git -C "$ROOT" bundle create --quiet - "$branch" "${haves[@]}"
    fi | on_spare spare_receive "$SPARE_ROOT" "$branch" "$commit"
}

# list_data: the files that sync-data sends, relative to DATA_ROOT, NUL behind each. Inside the checkout those that git
# ignores: the others come with sync-code, or would make the spare's tree dirty.
list_data() {
    [[ -d $DATA_ROOT ]] || return 0
    if [[ $DATA_ROOT/ == "$ROOT"/* ]]; then
        git -C "$DATA_ROOT" ls-files -z --others --ignored --exclude-standard | { grep -zv '__pycache__/' || true; }
    else
        (cd -- "$DATA_ROOT" && find -L . -type f -printf '%P\0')
    fi
}

sync_data() {
    [[ -n $(list_data | tr '\0' '\n') ]] || die "no data to send" "DATA_ROOT=$DATA_ROOT, without a git-ignored file" \
        "the folder of docs/data.md" "make the data, or set DATA_ROOT"
    send "$SPARE_DATA_ROOT" --files-from=- --from0 "$DATA_ROOT/" < <(list_data)
}

sync_adapter() {
    local adapter folder
    [[ -f ${1:-}/adapter_config.json ]] || die "no adapter" "${1:-no path}, without an adapter_config.json" \
        "a folder that PEFT reads" "bash launch/spare.sh sync-adapter runs/…/adapter"
    adapter=$(cd -- "$1" && pwd)
    folder=$(place_there "$adapter")
    if [[ -f ${adapter%/*}/run.json ]]; then send "${folder%/*}" "${adapter%/*}/run.json"; fi # names the adapter's base
    send "$folder" "$adapter/"
    printf 'on the spare: %s\n' "$folder"
}

verify() {
    local here there code command
    code=$(<"$ROOT/rft/runs/fingerprint.py")
    cd -- "$ROOT"
    if [[ $DRY_RUN == 1 ]]; then
        print_command "$PYTHON" -m rft.runs.fingerprint "$DATA_ROOT"
        on_spare spare_fingerprint "$SPARE_ROOT" "$SPARE_PYTHON" "$SPARE_DATA_ROOT" rft/runs/fingerprint.py
        return 0
    fi
    there=$(list_data | on_spare spare_fingerprint "$SPARE_ROOT" "$SPARE_PYTHON" "$SPARE_DATA_ROOT" "$code")
    there=${there##*$'\n'} # without what the account's .bashrc may print
    here=$(list_data | "$PYTHON" -m rft.runs.fingerprint "$DATA_ROOT")
    "$PYTHON" -m rft.runs.fingerprint --compare <(printf '%s' "$here") <(printf '%s' "$there")
}

check_name() {
    [[ ${1:-} =~ ^[A-Za-z0-9][A-Za-z0-9_-]*$ ]] || die "unusable name for a job" "${1:-no name}" \
        "letters, digits, hyphens and underscores" "bash launch/spare.sh run eval-ood CMD …"
}

run_there() {
    check_name "${1:-}"
    (($# > 1)) || die "no command" "a name only" "the job's command" "bash launch/spare.sh run $1 CMD [ARG …]"
    on_spare spare_start_job "$SPARE_ROOT" "$SPARE_JOBS" "$@" </dev/null
}

tail_there() {
    check_name "${1:-}"
    [[ ${2:-30} =~ ^[0-9]+$ ]] || die "not a number of lines" "$2" "digits" "bash launch/spare.sh tail $1 30"
    on_spare spare_show_job "$SPARE_JOBS" "$1" "${2:-30}" </dev/null
}

action="${1:-}"
(($# == 0)) || shift
case "$action" in
    sync-code | sync-data | verify) (($# == 0)) || die "too many arguments" "$action $*" "$action alone" "leave them out" ;;
    sync-adapter | run | tail) ;;
    *) die "no such action" "${action:-none}" "sync-code, sync-data, sync-adapter, verify, run or tail" \
        "read the head of launch/spare.sh" ;;
esac
configure
case "$action" in
    sync-code) sync_code ;;
    sync-data) sync_data ;;
    sync-adapter) sync_adapter "$@" ;;
    verify) verify ;;
    run) run_there "$@" ;;
    tail) tail_there "$@" ;;
esac
