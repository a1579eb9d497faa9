# shellcheck shell=bash
# What launch/spare.sh runs on the spare machine: each function is sent alone, with `die` and `print_command`, to a bash
# that has read no file of this checkout.
set -Eeuo pipefail

# spare_tips ROOT: refuse a checkout that cannot be advanced; print the commits that it has, if there is one.
spare_tips() {
    local changed
    command -v git >/dev/null || die "no git on the spare" "none on PATH" "git" "install it there"
    if [[ ! -e $1 ]] || [[ -d $1 && -z $(ls -A -- "$1") ]]; then return 0; fi
    [[ -e $1/.git ]] || die "no checkout on the spare" "$1, with other things in it" "a checkout, or nothing" \
        "move it away there, or set SPARE_ROOT"
    cd -- "$1"
    changed=$(git status --porcelain)
    [[ -z $changed ]] || die "the spare's tree is dirty" "${changed//$'\n'/, }" "no uncommitted change there" \
        "commit, stash or discard them there, in $1"
    git for-each-ref --format='%(objectname)' refs/heads
    git rev-parse --quiet --verify HEAD || true
}

# spare_receive ROOT BRANCH COMMIT: advance the branch to the commit, whose bundle is on stdin (empty: it is there).
spare_receive() {
    local root=$1 branch=$2 commit=$3 current tip
    bundle=$(mktemp)
    trap 'rm -f -- "$bundle"' EXIT
    cat >"$bundle"
    if [[ ! -e $root/.git ]]; then
        mkdir -p -- "$(dirname -- "$root")"
        partial=$(mktemp -d -- "$root.XXXXXX")
        trap 'rm -rf -- "$bundle" "$partial"' EXIT
        chmod '=rwx' -- "$partial"
        git -C "$partial" init --quiet
        git -C "$partial" bundle unbundle "$bundle" >/dev/null
        git -C "$partial" symbolic-ref HEAD "refs/heads/$branch"
        git -C "$partial" reset --quiet --hard "$commit"
        mv -T -- "$partial" "$root"
        printf 'on the spare: new checkout %s, %s at %s\n' "$root" "$branch" "${commit:0:10}"
        return 0
    fi
    cd -- "$root"
    if [[ -s $bundle ]]; then git bundle unbundle "$bundle" >/dev/null; fi
    current=$(git symbolic-ref --quiet --short HEAD || true)
    tip=$(git rev-parse --quiet --verify "refs/heads/$branch" || true)
    if [[ -z $current ]]; then tip=${tip:-$(git rev-parse HEAD)}; fi # a detached HEAD has nothing else that keeps it
    if [[ -n $tip ]] && ! git merge-base --is-ancestor "$tip" "$commit"; then
        die "the spare has diverged" \
            "$(git rev-list --count "$commit..$tip") commits on its $branch that are not here, up to ${tip:0:10}" \
            "an ancestor of ${commit:0:10}" \
            "fetch them from $root there (git fetch) and merge, or move its branch away"
    fi
    if [[ $current == "$branch" ]]; then
        git merge --quiet --ff-only "$commit"
    else
        git update-ref "refs/heads/$branch" "$commit"
        git switch --quiet "$branch"
    fi
    printf 'on the spare: %s at %s, was %s\n' "$branch" "${commit:0:10}" "${tip:0:10}"
}

# spare_make_folder FOLDER: for rsync, which has to be there as well.
spare_make_folder() {
    command -v rsync >/dev/null || die "no rsync on the spare" "none on PATH" "rsync" "install it there"
    mkdir -p -- "$1"
}

# spare_fingerprint ROOT PYTHON DATA_ROOT CODE: rft/runs/fingerprint.py's text, run in the spare's checkout.
spare_fingerprint() {
    [[ -f $1/rft/runs/manifest.py ]] || die "no checkout on the spare" "no rft in $1" "this repository" \
        "bash launch/spare.sh sync-code"
    command -v -- "$2" >/dev/null || die "no environment on the spare" "no interpreter $2" \
        "the one that runs rft there" \
        "bash launch/spare.sh run set-up bash -c '. launch/common.sh; setup_env', or set SPARE_PYTHON"
    cd -- "$1"
    "$2" -c "$4" "$3"
}

# spare_start_job ROOT JOBS NAME CMD ARG…: a tmux session that leaves JOBS/NAME/{job.sh,log,status}.
spare_start_job() {
    local root=$1 job=$2/$3 name=$3
    shift 3
    command -v tmux >/dev/null || die "no tmux on the spare" "none on PATH" "tmux" "install it there"
    [[ -d $root ]] || die "no checkout on the spare" "no folder $root" "this repository" \
        "bash launch/spare.sh sync-code"
    if tmux has-session -t "=$name" 2>/dev/null; then
        die "the session exists" "tmux session $name on the spare" "a new name" "choose another one, or stop it there"
    fi
    [[ ! -e $job ]] || die "the name is taken" "$job on the spare, of an earlier job" "a new name" \
        "choose another one, or move that folder away"
    mkdir -p -- "${job%/*}"
    mkdir -- "$job"
    : >"$job/log"
    # shellcheck disable=SC2016  # the job expands them
    {
        printf 'cd -- %q || exit\n' "$root"
        printf 'export PATH=%q:"$PATH" PYTHONUNBUFFERED=1\n' "$root/.venv/bin"
        printf '%s 2>&1 | tee -a -- %q\n' "$(print_command "$@")" "$job/log"
        # Renamed, so that a status is never half written; none is left by a job that was killed with its session.
        printf 'printf "%%s\\n" "${PIPESTATUS[0]}" >%q && mv -- %q %q\n' "$job/status"{.partial,.partial,}
    } >"$job/job.sh"
    # A login shell: the account's profile says where its caches are.
    tmux new-session -d -s "$name" bash -l "$job/job.sh" || {
        rm -r -- "$job"
        die "tmux did not start the job" "its message above" "a session $name" "try tmux there by hand"
    }
    printf 'on the spare: session %s, log %s\n' "$name" "$job/log"
}

# spare_show_job JOBS NAME LINES: end of the log, and on the last line the state of the job.
spare_show_job() {
    local job=$1/$2 state="ended without an exit status: its session was killed, or the machine went down"
    [[ -f $job/log ]] || die "no such job on the spare" "no log $job/log" "the name of a job in $1" \
        "bash launch/spare.sh run $2 CMD …"
    if tmux has-session -t "=$2" 2>/dev/null; then state="running"; fi
    tail -n "$3" -- "$job/log"
    # Read after the session was looked for: a job that ends meanwhile is not called killed.
    if [[ -f $job/status ]]; then state="exit status $(<"$job/status")"; fi
    printf '%s: %s\n' "$2" "$state"
}
