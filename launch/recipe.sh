# shellcheck shell=bash
# Which recipe of launch/recipes a launch takes: what is trained, by which loss, how fast and on how much. Sourced by
# launch/common.sh.

# use_recipe: the recipe that RECIPE names, a26 where it is unset; said on stderr with what each other one would change,
# since a dry run's output is commands. After `use models/…`, by whose MODEL_ID recipes differ, and before use_cluster.
use_recipe() {
    local name=${RECIPE:-a26} other
    require_recipe "$name"
    add_recipe "$name"
    while read -r other; do
        [[ $other == "$name" ]] || printf 'recipe: %s; RECIPE=%s would change: %s\n' \
            "$name" "$other" "$(recipe_changes "$name" "$other")" >&2
    done < <(recipes)
}

# use_fixed_recipe NAME: this one alone, for a launcher whose question is about it.
use_fixed_recipe() {
    [[ ${RECIPE:-$1} == "$1" ]] || die "this launcher's settings are those of the recipe $1" "RECIPE=$RECIPE" \
        "RECIPE=$1, or none" "unset RECIPE; train_grpo_20b.sh and train_grpo_120b.sh take any"
    add_recipe "$1"
}

# require_recipe NAME: launch/recipes has it.
require_recipe() {
    [[ $1 != */* && -r $ROOT/launch/recipes/$1.env ]] ||
        die "no such recipe" "RECIPE=$1" "one of $(recipes | paste -sd ' ')" "correct RECIPE, or unset it for a26"
}

# use_adapter_of_recipe: of RECIPE (default a26) only the adapter's shape and the reasoning effort of its prompts, for a
# supervised training that GRPO goes on from.
use_adapter_of_recipe() {
    local -A options=()
    local name=${RECIPE:-a26} option words
    require_recipe "$name"
    require_effort "$name"
    read_recipe options "$name"
    for option in --lora_rank --lora_alpha --target_modules --reasoning_effort; do
        [[ -n ${options[$option]:-} ]] || continue # a26 leaves the effort to the template
        read -r -a words <<<"${options[$option]}"
        MODEL_ARGS+=("$option" "${words[@]}")
    done
}

# no_recipe WHAT: for a task that has settings of its own.
no_recipe() {
    [[ -z ${RECIPE:-}${EFFORT:-} ]] || die "$1 takes no recipe" "RECIPE=${RECIPE:-} EFFORT=${EFFORT:-}" "neither" \
        "unset RECIPE EFFORT; launch/train_grpo_20b.sh and its like take them"
}

# add_recipe NAME: to the model's preset. Sets LONGEST, the tokens of its longest sample, for the cluster's preset.
add_recipe() {
    local -A options=()
    require_effort "$1"
    RECIPE_ARGS=()
    use "recipes/$1"
    MODEL_ARGS+=("${RECIPE_ARGS[@]}")
    read_recipe options "$1"
    # shellcheck disable=SC2034  # read by clusters/colocated and clusters/apart
    LONGEST=$((options[--prompt_max_len] + options[--generate_max_len]))
}

# require_effort NAME: the recipe has the form that EFFORT names.
require_effort() {
    [[ -z ${EFFORT:-} || $1 == tuned && $EFFORT =~ ^(low|medium)$ ]] ||
        die "EFFORT chooses between two forms of the recipe tuned" "EFFORT=$EFFORT, RECIPE=$1" \
            "RECIPE=tuned with EFFORT=low or EFFORT=medium (the default)" \
            "unset EFFORT; another effort: --reasoning_effort high --generate_max_len N behind the launcher"
}

# recipes: their names, one a line.
recipes() {
    local file
    for file in "$ROOT"/launch/recipes/*.env; do basename -- "$file" .env; done
}

# read_recipe ARRAY NAME: the words of each option of a recipe, by the option's name.
read_recipe() {
    local -n of_recipe=$1
    local option words
    while read -r option words; do
        # shellcheck disable=SC2034  # the caller's array
        of_recipe["$option"]=$words
    done < <(
        RECIPE_ARGS=()
        use "recipes/$2"
        printf '%s ' "${RECIPE_ARGS[@]}" | sed 's/ --/\n--/g'
        echo
    )
}

# recipe_changes HERE THERE: what recipe THERE sets otherwise than HERE, leaves out, or sets besides.
recipe_changes() {
    local -A here=() there=()
    local option changes=()
    read_recipe here "$1"
    read_recipe there "$2"
    while read -r option; do
        if [[ -z ${there[$option]+set} ]]; then
            changes+=("no ${option#--}")
        elif [[ -z ${here[$option]+set} ]]; then
            changes+=("${option#--}${there[$option]:+ ${there[$option]}}")
        elif [[ ${here[$option]} != "${there[$option]}" ]]; then
            changes+=("${option#--} ${here[$option]} -> ${there[$option]}")
        fi
    done < <(printf '%s\n' "${!here[@]}" "${!there[@]}" | sort -u)
    printf '%s, ' "${changes[@]}" | sed 's/, $//'
}
