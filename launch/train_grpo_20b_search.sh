#!/usr/bin/env bash
# GRPO on gpt-oss-20b as a search agent: questions of NQ and HotpotQA, answered in up to four turns with passages of
# Wikipedia that a retriever finds (docs/search_agents.md). All settings: launch/tasks/search.env.
# Hardware: one GPU of 80 GB or more of them, beside the retriever (docs/running.md). Time: 64 conversations of
# 1,300 tokens took 56 s on one H100, 46 of them the rollout (docs/benchmarks.md).
#
#   bash launch/train_grpo_20b_search.sh [OPENRLHF OPTION …]  SEED=42 RUN_DIR=runs/… DATA_ROOT=… CORPUS=… RETRIEVER_URL=…
#
# Acceptance: 'after - before >= 0.03' (greedy_pass@1, nq.jsonl and hotpotqa.jsonl, 95% interval of the difference above 0)
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
use models/gpt-oss-20b
use tasks/search # before the cluster: the retriever's GPUs are not the training's
use_cluster
experiment "$@"
