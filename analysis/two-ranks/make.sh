#!/usr/bin/env bash
# Captures two ranks of data-parallel training, a report for each, on a machine with two GPUs, torch, nvtx and nsys.
# Run from the project's root: analysis/two-ranks/make.sh [FOLDER]; without FOLDER the reports go to analysis/two-ranks.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OUT_FOLDER=${1:-analysis/two-ranks}
torchrun --standalone --nproc-per-node 2 --no-python bash -c '
    python3 -m nsysprof capture -o "$OUT_FOLDER/rank_$RANK" -- python3 analysis/two-ranks/train.py'
