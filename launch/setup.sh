# shellcheck shell=bash
# The environment: uv, .venv-cpu or .venv-gpu (or a newer release's, .venv-cpu-VERSION) from the hash-locked
# requirements, patches. Sourced by launch/common.sh.
# No index address is set here: uv and pip take mirrors and credentials from the user's own configuration.

UV_VERSION=0.13.8
TOOLS="$ROOT/.tools"
STAMP=.rft-setup     # in an environment, written last: what it was made from
HALF=.rft-incomplete # there while an installation runs
NEEDED_MB=10000      # the installed packages: 8.6 GB, bytecode, and some room

# setup_env: make VENV ready for work. Does nothing but compare a hash and the patches when it is already.
setup_env() {
    [[ $DRY_RUN != 1 ]] || return 0
    mkdir -p -- "$TOOLS" 2>/dev/null || die "cannot write to the checkout" "$ROOT, read-only" "a writable checkout" \
        "chmod u+w, or clone to another place"
    # Two launches at once must not install into one folder; the lock ends with the subshell.
    (
        flock -n 9 || {
            printf 'another set-up runs in this checkout; waiting for it\n' >&2
            flock 9
        }
        local want
        want=$(setup_fingerprint)
        # shellcheck disable=SC2153  # PYTHON is set in stack.sh
        if [[ ! -f $VENV/$STAMP || $(<"$VENV/$STAMP") != "$want" || ! -x $PYTHON || -e $VENV/$HALF ]]; then
            require_unused
            install_environment
            apply_overlay
            # After the patches, so that the patched files are compiled too.
            "$PYTHON" "$ROOT/launch/compile_bytecode.py" "$VENV"
            printf '%s\n' "$want" >"$VENV/$STAMP"
        elif ! bash "$ROOT/apply_patches.sh" verify --python "$PYTHON" >/dev/null 2>&1; then
            require_unused
            apply_overlay
        fi
        collect_seldom
        link_environment
    ) 9>"$TOOLS/setup.lock"
}

# link_environment: .venv, by which people call programs, is a link to .venv-gpu once that is set up, else to .venv-cpu.
# Never back, so a launch of the CPU stack changes nothing on a machine with GPUs, nor does a login node without them. It
# never names the environment of a newer release.
link_environment() {
    local wanted=.venv-cpu present note users
    present=$(readlink -- "$ROOT/.venv" || true)
    if [[ -f $ROOT/.venv-gpu/$STAMP || $present == .venv-gpu && -d $ROOT/.venv-gpu ]]; then wanted=.venv-gpu; fi
    users=$(users_of "$ROOT/.venv")
    if [[ $VENV == "$ROOT/.venv" ]]; then
        note=""
    elif [[ $RFT_STACK != "$STACK_KIND" ]]; then
        note=": call programs of ${VENV##*/}/bin"
    elif is_environment "$ROOT/.venv"; then
        note=", .venv is the $(stack_of "$ROOT/.venv") stack's: call programs of ${VENV##*/}/bin"
    elif [[ $present == "$wanted" ]]; then
        note=", .venv is a link to $wanted"
    elif [[ -n $users ]]; then
        note=", .venv stays a link to $present, which processes $users use: make setup once they have ended"
    else
        ln -sfn -- "$wanted" "$TOOLS/venv" # then renamed, so that .venv is there at any moment
        mv -fT -- "$TOOLS/venv" "$ROOT/.venv"
        note=", .venv is now a link to $wanted"
    fi
    printf 'environment: %s, the %s stack%s\n' "${VENV##*/}" "$RFT_STACK" "$note"
}

# require_unused: never change an environment under a live run.
require_unused() {
    local users
    users=$(users_of "$VENV")
    [[ -z $users ]] || die "the environment is in use" "processes $users, which would get a mixture of old and new code" \
        "no process that uses ${VENV##*/} while it is changed" "wait for them or end them, or launch from another clone"
}

# users_of VENV: ids of the processes that have loaded libraries from there, in one line; those of other users do not show.
users_of() {
    local place
    place=$(realpath -- "$1" 2>/dev/null) || return 0
    { grep -lsF -- " $place/" /proc/[0-9]*/maps || true; } | cut -d / -f 3 | paste -sd ' '
}

apply_overlay() {
    bash "$ROOT/apply_patches.sh" apply --python "$PYTHON"
    bash "$ROOT/apply_patches.sh" verify --python "$PYTHON" >/dev/null
}

# collect_seldom: the CPU stack's processes look for garbage every 50,000 objects, not every 700. They import for seven
# seconds, of which one goes into looking through what is imported for good. Not on GPUs, whose memory waits for its cycles.
collect_seldom() {
    local site file=rft-collect-seldom.pth
    [[ $STACK_KIND == cpu ]] || return 0
    for site in "$VENV"/lib/python*/site-packages; do
        [[ -e $site/$file ]] || printf 'import gc; gc.set_threshold(50_000)\n' >"$site/$file"
    done
}

# What an installation depends on. The place counts: scripts in its bin hold absolute paths.
setup_fingerprint() {
    local files
    mapfile -t files < <(locks)
    printf 'stack %s, root %s, %s\n' "$RFT_STACK" "$ROOT" \
        "$(cat -- "${files[@]/#/"$ROOT/"}" "$ROOT/pyproject.toml" | sha256sum)"
}

# locks: the files that the stack is installed from, one a line.
locks() {
    local names=("$RFT_STACK")
    ! on_aarch64 || names=(gpu-aarch64 openrlhf)
    printf 'requirements/%s.txt\n' "${names[@]}"
}

# on_aarch64: whether the stack is the one for GPUs and the processor an aarch64, for which it has a lock of its own.
on_aarch64() { [[ $RFT_STACK == gpu && $(uname -m) == aarch64 ]]; }

# check_aarch64: what an installation there cannot do without, before the first byte is written.
check_aarch64() {
    local repair="RFT_STACK=gpu TORCH_INDEX=ADDRESS make setup, with the address from there"
    local index="TORCH_INDEX, the index for CUDA 12.8 of pytorch.org/get-started/locally or a mirror of it"
    [[ $(uname -m) == aarch64 ]] || return 0
    [[ $RFT_STACK == gpu ]] || die "this stack is not for aarch64" \
        "RFT_STACK=$RFT_STACK (cpu, unless set, where nvidia-smi lists no GPU)" "RFT_STACK=gpu, and $index" "$repair"
    [[ -n ${TORCH_INDEX:-} ]] || die "no index that has torch with CUDA for aarch64" \
        "TORCH_INDEX is not set, and PyPI's wheel has no CUDA" "$index" "$repair"
}

install_environment() {
    local python uv progress=()
    check_aarch64
    python=$(find_python)
    check_disk
    uv=$(find_uv "$python")
    export UV_PYTHON_DOWNLOADS="${UV_PYTHON_DOWNLOADS:-never}"
    # An interrupted installation may have left packages that look complete and are not: start over, from uv's cache.
    if [[ -e $VENV/$HALF || ! -x $PYTHON ]] || ! "$PYTHON" -c '' 2>/dev/null; then
        [[ ! -e $VENV || -e $VENV/$HALF || ! -e $VENV/bin ]] || printf 'replacing %s: its interpreter does not run\n' "$VENV"
        "$uv" venv --quiet --clear --python "$python" "$VENV"
    fi
    rm -f -- "$VENV/$STAMP"
    : >"$VENV/$HALF"
    printf 'installing %s into %s (the first time about 3 GB to download)\n' "$(locks | paste -sd ' ')" "${VENV##*/}"
    [[ -t 2 ]] || progress=(--quiet) # a log needs neither bars nor 300 package names
    if on_aarch64; then
        install_lock requirements/gpu-aarch64.txt
        # Its wheel is Python alone, under a tag of x86-64.
        install_lock requirements/openrlhf.txt --python-platform x86_64-manylinux_2_35
        install_torch
    else
        install_lock "requirements/$RFT_STACK.txt"
    fi
    "$uv" pip install --quiet --python "$PYTHON" --no-deps --no-build-isolation -e "$ROOT" ||
        die "rft itself could not be installed" "uv's message above" "an editable installation of $ROOT" \
            "correct pyproject.toml, then run again"
    rm -f -- "$VENV/$HALF"
}

# install_lock FILE OPTION…: its packages, each by its hash.
install_lock() {
    DS_BUILD_OPS=0 "$uv" pip install --python "$PYTHON" --no-deps "${progress[@]}" --require-hashes -r "$ROOT/$1" "${@:2}" ||
        die "the packages could not be installed" "uv's message above" "every package of $1" \
            "check the network and your mirror settings (UV_DEFAULT_INDEX; UV_FIND_LINKS for local wheels), run again"
}

# install_torch: the locked version, built with CUDA, in place of PyPI's for aarch64; with what it depends on, which is more
# where CUDA's libraries are packages of their own. No lock has its hash.
install_torch() {
    local version cuda repair="correct TORCH_INDEX (the index for CUDA 12.8 of pytorch.org/get-started/locally), run again"
    version=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$ROOT/requirements/gpu-aarch64.txt")
    "$uv" pip install --python "$PYTHON" "${progress[@]}" --index "$TORCH_INDEX" --reinstall-package torch \
        "torch==$version" ||
        die "torch could not be installed" "uv's message above" \
            "torch $version for aarch64, of the index that TORCH_INDEX names" "$repair"
    cuda=$("$PYTHON" -c 'import torch; print(torch.version.cuda or "")') && [[ -n $cuda ]] ||
        die "this torch has no CUDA" "torch $version of the index that TORCH_INDEX names, or of the default one" \
            "one for which torch.version.cuda is set" "$repair"
}

# find_python: path of a Python 3.11 that runs (a pyenv shim may exist and not run).
find_python() {
    local candidate path
    for candidate in python3.11 python3; do
        path=$(command -v "$candidate") || continue
        if "$path" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            printf '%s\n' "$path"
            return 0
        fi
    done
    if path=$(command -v uv) && path=$("$path" python find --no-python-downloads --no-project 3.11 2>/dev/null); then
        printf '%s\n' "$path"
        return 0
    fi
    local repair="install python3.11 and python3.11-venv with the system's package manager"
    if command -v uv >/dev/null; then repair="uv python install 3.11"; fi
    die "no Python 3.11" "$(python3 --version 2>/dev/null || printf 'no python3') on PATH" \
        "python3.11 (OpenRLHF 0.9.3 ships wheels for CPython 3.11 only)" "$repair"
}

# check_disk: refuse before the first byte is written, not in the middle of an 8 GB installation.
check_disk() {
    local free used=0
    free=$(df -Pm -- "$ROOT" | awk 'NR == 2 { print $4 }')
    if [[ -d $VENV ]]; then used=$(du -sm -- "$VENV" | cut -f1); fi
    ((free + used >= NEEDED_MB)) || die "the disk is too small" "$free MB free at $ROOT" \
        "$((NEEDED_MB - used)) MB for ${VENV##*/}" "free some space, or clone to a larger disk"
}

# find_uv PYTHON: path of uv, from PATH or .tools/uv; a pinned one is installed where there is none.
find_uv() {
    local uv="$TOOLS/uv/bin/uv"
    if command -v uv; then return 0; fi
    if ! "$uv" --version >/dev/null 2>&1; then
        printf 'installing uv %s into .tools\n' "$UV_VERSION" >&2
        rm -rf -- "$TOOLS/uv"
        "$1" -m venv "$TOOLS/uv" >&2 || die "cannot make a virtual environment" "$1 -m venv failed, message above" \
            "the venv and ensurepip modules" "install python3.11-venv, or put uv on PATH"
        "$TOOLS/uv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 10 \
            "uv==$UV_VERSION" >&2 || die "uv could not be installed" "pip's message above" "uv==$UV_VERSION" \
            "check the network and pip's mirror settings (PIP_INDEX_URL), or put uv on PATH"
    fi
    printf '%s\n' "$uv"
}
