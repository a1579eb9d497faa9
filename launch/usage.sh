# shellcheck shell=bash
# What a script is asked: its help, and its variables that are yes or no. Sourced, with the script's arguments.

# die WHAT FOUND WANTED REPAIR: one message, exit 1.
die() {
    printf 'error: %s\n  found:  %s\n  wanted: %s\n  repair: %s\n' "$@" >&2
    exit 1
}

# print_help: the comment at the head of the script that runs; of a launcher also what all launchers read.
print_help() {
    head_of "$0"
    [[ $(head_of "$0") != *"bash launch/train_"* ]] || sed -n '/^# Environment:/,/^[^#]/ s/^# \{0,1\}//p' \
        "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
}

# head_of SCRIPT: its first comment, without marks and without what is meant for shellcheck.
head_of() {
    sed -n -e '1{/^#!/d}' -e '/^[^#]/q; /^$/q' -e '/^# shellcheck /d' -e 's/^# \{0,1\}//p' -- "$1"
}

# flag NAME DEFAULT [WORD]: the variable becomes 1 or 0, or WORD where it says that; anything else is refused.
flag() {
    local value=${!1:-$2}
    value=${value,,}
    case $value in
    1 | true | yes | on) printf -v "$1" 1 ;;
    0 | false | no | off) printf -v "$1" 0 ;;
    "${3:-}") printf -v "$1" '%s' "$value" ;;
    *)
        die "$1 is neither yes nor no" "$1=${!1}" "1, true, yes, on, or 0, false, no, off${3:+, or $3}" \
            "correct it, or unset $1"
        ;;
    esac
}

for usage_word in "$@"; do
    case $usage_word in
    -h | --help)
        print_help
        exit 0
        ;;
    esac
done
