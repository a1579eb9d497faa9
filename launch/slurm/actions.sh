# shellcheck shell=bash disable=SC2034  # read by script.sh
# What the user asks of a run's jobs. Sourced by launch/slurm.sh.
#
# A run's folder slurm/ holds job.sh, JOB.log of each job, jobs.log (TIME JOB WORD …: submitted, began HOSTS, submits JOB,
# withdraws JOB, ended STATUS WHY), chain (how many jobs in a row), and `cancelled` once no further job shall follow.

submit() {
    (($# >= 2)) || die "cluster or launcher is missing" "submit $*" "both" \
        "bash launch/slurm.sh submit gh200 launch/train_grpo_20b.sh"
    LAUNCHER=$(realpath -- "$2" 2>/dev/null) && [[ -f $LAUNCHER ]] || die "no such launcher" "$2" \
        "one of launch/train_*.sh" "bash launch/slurm.sh submit $1 launch/train_grpo_20b.sh"
    START_DIR=$PWD
    RUN_DIR=$(realpath -ms -- "${RUN_DIR:-$ROOT/runs/$(basename -- "$LAUNCHER" .sh)/$(date -u +%Y%m%dT%H%M%SZ)}")
    JOB_FOLDER=$RUN_DIR/slurm JOB_NAME="rft-${RUN_DIR##*/}"
    given_variables # before the preset, whose CLUSTER comes second
    read_preset "$1"
    [[ -z ${CLUSTER:-} || " ${GIVEN[*]}" == *" CLUSTER="* ]] || GIVEN+=("CLUSTER=$CLUSTER")
    shift 2
    OPTIONS=("${JOB_OPTIONS[@]}" "$@")
    STOP_SIGNAL=B:USR1@$STOP_SECONDS
    job_values
    retriever_words
    if [[ $DRY_RUN == 1 ]]; then
        write_script train
        return 0
    fi
    require_slurm
    # A script that Slurm has refused may be there.
    [[ ! -e $JOB_FOLDER/jobs.log && -z $(find "$RUN_DIR" -mindepth 1 -maxdepth 1 ! -name slurm 2>/dev/null) ]] || die "the run directory is taken" "$RUN_DIR, not empty" \
        "a new or empty folder" "choose another RUN_DIR; to go on with its run: bash launch/slurm.sh resume $RUN_DIR"
    mkdir -p -- "$JOB_FOLDER"
    write_script train >"$JOB_FOLDER/job.sh"
    submit_job
    printf 'run directory: %s\n' "$RUN_DIR"
}

# smoke CLUSTER: submit the job, wait for it, print its page; its verdict is the exit status.
smoke() {
    local status=0 job
    (($# == 1)) || die "smoke takes a cluster" "smoke $*" "its name alone" "bash launch/slurm.sh smoke gh200"
    JOB_FOLDER=$(realpath -ms -- "${RUN_DIR:-$ROOT/runs/slurm_smoke/$(date -u +%Y%m%dT%H%M%SZ)}") JOB_NAME=rft-smoke
    read_preset "$1"
    SBATCH_TIMELIMIT=${SMOKE_TIMELIMIT:-20}
    job_values
    PLACES=("$JOB_FOLDER" "${JOB_SCRATCH:-/tmp}" /tmp)
    [[ -n ${JOB_SCRATCH:-} ]] || unset 'PLACES[2]'
    if [[ $DRY_RUN == 1 ]]; then
        write_script smoke
        return 0
    fi
    require_slurm
    [[ ! -e $JOB_FOLDER/job.sh ]] || die "the folder is taken" "$JOB_FOLDER" "a new or empty one" "choose another RUN_DIR"
    mkdir -p -- "$JOB_FOLDER"
    write_script smoke >"$JOB_FOLDER/job.sh"
    printf 'waiting for the smoke test; its output: %s\n' "$JOB_FOLDER"
    job=$(env -u SBATCH_TIMELIMIT sbatch --parsable --wait "$JOB_FOLDER/job.sh") || status=$? # what is exported wins over a script
    [[ -n $job ]] || die "Slurm refuses the job" "sbatch's message above" "a job that this cluster takes" \
        "correct the preset's variables (bash launch/slurm.sh smoke --dry-run $1 shows them)"
    cat -- "$JOB_FOLDER/${job%%;*}.log" || die "the smoke test left no output" "no log of job $job" "its page" \
        "scontrol show job $job says how it ended; nodes must share the disk of $JOB_FOLDER"
    return "$status"
}

# submit_job: JOB_FOLDER's job.sh.
submit_job() {
    local job
    job=$(sbatch --parsable "$JOB_FOLDER/job.sh") || die "Slurm refuses the job" "sbatch's message above" \
        "a job that this cluster takes" "correct the preset's variables (bash launch/slurm.sh submit --dry-run shows them)"
    job=${job%%;*}
    printf '1\n' >"$JOB_FOLDER/chain"
    printf '%s %s submitted\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$job" >>"$JOB_FOLDER/jobs.log"
    printf 'job %s; its output: bash launch/slurm.sh logs %s\n' "$job" "${JOB_FOLDER%/slurm}"
}

require_slurm() {
    command -v sbatch >/dev/null || die "no Slurm here" "no sbatch on PATH" "a login node of the cluster" \
        "run it there; --dry-run shows the job anywhere"
}

# find_job_folder RUN: JOB_FOLDER, JOBS (oldest first), without those that were taken back before they began.
find_job_folder() {
    local run=${1:-}
    require_slurm
    JOB_FOLDER=$(realpath -ms -- "$run")/slurm
    [[ -n $run && -f $JOB_FOLDER/jobs.log ]] || die "no jobs of such a run" "${run:-no RUN}" \
        "the directory of a run that launch/slurm.sh has submitted" "bash launch/slurm.sh submit CLUSTER LAUNCHER"
    mapfile -t JOBS < <(awk '$3 == "submitted" { jobs[++n] = $2 } $3 == "submits" { jobs[++n] = $4 } $3 == "withdraws" { gone[$4] }
        END { for (i = 1; i <= n; i++) if (!(jobs[i] in gone)) print jobs[i] }' "$JOB_FOLDER/jobs.log")
}

# live_jobs: of JOBS, those that wait or run, one a line.
live_jobs() {
    squeue --noheader --format=%i --jobs="$(IFS=, && printf '%s' "${JOBS[*]}")" 2>/dev/null || true # unknown: ended
}

# state_of JOB: in Slurm's words, or what the job has written at its end.
state_of() {
    local state
    state=$(squeue --noheader --format='%T %r' --jobs="$1" 2>/dev/null) || true
    [[ -n $state ]] || state=$(sacct --noheader --allocations --parsable2 --format=State --jobs="$1" 2>/dev/null) || true
    [[ -n $state ]] || state=$(scontrol show job "$1" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p') || true
    printf '%s' "${state% None}"
}

status_run() {
    local job last ended
    find_job_folder "${1:-}"
    for job in "${JOBS[@]}"; do
        printf 'job %s  %s\n' "$job" "$(state_of "$job")"
        awk -v job="$job" '$2 == job && $3 != "submitted" { $2 = ""; print "    " $0 }' "$JOB_FOLDER/jobs.log"
    done
    last=${JOBS[-1]}
    ended=$(awk -v job="$last" '$2 == job && $3 == "ended" { print $4 }' "$JOB_FOLDER/jobs.log")
    if [[ -n $(live_jobs) ]]; then return 0; fi
    case $ended in
    0) printf 'the run is complete: %s\n' "${JOB_FOLDER%/slurm}" ;;
    10) printf 'a rule stopped the run: %s\n' "${JOB_FOLDER%/slurm}/decisions.jsonl" ;;
    *)
        if [[ -z $ended ]] && grep -q " $last began " "$JOB_FOLDER/jobs.log"; then
            printf 'job %s was ended from outside (%s), without a last word\n' "$last" "$(state_of "$last")"
        fi
        printf 'no job of it is left; to go on: bash launch/slurm.sh resume %s\n' "${JOB_FOLDER%/slurm}"
        ;;
    esac
}

logs_run() {
    local log job follow=()
    find_job_folder "${1:-}"
    [[ ${2:-} != -f ]] || follow=(-F)
    for job in "${JOBS[@]}"; do [[ ! -e $JOB_FOLDER/$job.log ]] || log=$JOB_FOLDER/$job.log; done
    [[ -n ${log:-} ]] || die "no output yet" "job ${JOBS[-1]}: $(state_of "${JOBS[-1]}")" "a job that has begun" \
        "bash launch/slurm.sh status $1"
    printf '%s\n' "$log" >&2
    exec tail -n 100 "${follow[@]}" -- "$log"
}

# cancel_run RUN [--now]: the running job saves and ends, those that wait are taken out of the queue.
cancel_run() {
    local job now=${2:-}
    [[ -z $now || $now == --now ]] || die "no such option" "$now" "--now, or nothing" "bash launch/slurm.sh cancel $1"
    find_job_folder "${1:-}"
    [[ -n $(live_jobs) ]] || die "nothing to cancel" "no job of $1 waits or runs" "one" "bash launch/slurm.sh status $1"
    : >"$JOB_FOLDER/cancelled" # before the signal, by which a job would submit the next one
    for job in $(live_jobs); do
        if [[ $(state_of "$job") == RUNNING* && $now != --now ]]; then
            scancel --batch --signal=USR1 "$job"
            printf 'job %s saves and ends; bash launch/slurm.sh status %s\n' "$job" "$1"
        else
            scancel "$job"
            printf 'job %s is cancelled\n' "$job"
        fi
    done
}

resume_run() {
    local ended
    find_job_folder "${1:-}"
    [[ -z $(live_jobs) ]] || die "the run has a job" "$(live_jobs | paste -sd ' ')" "none that waits or runs" \
        "bash launch/slurm.sh status $1"
    ended=$(awk -v job="${JOBS[-1]}" '$2 == job && $3 == "ended" { print $4 }' "$JOB_FOLDER/jobs.log")
    [[ $ended != 0 && $ended != 10 ]] || die "the run has ended" "status $ended of job ${JOBS[-1]}" "one that has not" \
        "read ${JOB_FOLDER%/slurm}/report.html"
    if [[ $DRY_RUN == 1 ]]; then
        cat -- "$JOB_FOLDER/job.sh"
        return 0
    fi
    rm -f -- "$JOB_FOLDER/cancelled"
    submit_job
}
