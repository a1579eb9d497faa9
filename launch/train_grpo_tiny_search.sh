#!/usr/bin/env bash
# Train the tiny gpt-oss with GRPO to search before it answers: the whole patched stack, conversations of several turns
# with a retriever of the run (docs/search_agents.md), and measure what it learned. The 512 facts of the corpus are
# invented, and those of train and held-out questions are others, so that only a search can answer.
# Hardware: 2 CPU cores, 12 GB; a GPU is left alone. Time: see README.md. Everything it needs is installed on the first
# launch.
#
#   bash launch/train_grpo_tiny_search.sh [OPENRLHF OPTION …]      SEED=0 RUN_DIR=runs/… DRY_RUN=1
#
# Acceptance: 'after - before >= 0.30' (greedy_pass@1, exact match on 256 held-out questions, for each of seeds 0, 1, 2)
export RFT_STACK="${RFT_STACK:-cpu}" # on any machine
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# One passage a search, and turns as short as the warm start's.
export RFT_AGENT_PROTOCOL=tags RFT_AGENT_MAX_TURNS=3 RFT_AGENT_TURN_TOKENS=16 RFT_AGENT_OBSERVATION_TOKENS=128
export RFT_AGENT_TOPK=1
CORPUS=$RUN_DIR/data/corpus.jsonl # no other has its facts, whatever a shell has exported
INDEX_DIR=$RUN_DIR/index
use_retriever
tiny_experiment search agent_func_search.py 256 "$@"
