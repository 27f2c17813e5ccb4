#!/usr/bin/env bash
# Makes the reports of this folder anew, on a machine with a GPU, torch, nvtx and nsys, with nsysprof installed or on the
# PYTHONPATH. Run from the project's root: traces/make.sh [FOLDER]. Without FOLDER they go to traces/made.
#
# What is committed are the .sqlite (scrubbed) and the .json of each; a .nsys-rep holds the environment of the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-traces/made}
nsysprof() { python3 -m nsysprof "$@"; }

# Why math is slow, backend by backend.
nsysprof capture -o "$out/run" --seq 1024 --seq 2048 --seq 4096 --warmup 20 --iterations 40 \
    --backend math --backend math_reduced --backend flash --backend efficient --backend cudnn --backend auto

# What the hardware counts of the same calls, with ncu; the report finds it by its name.
nsysprof counters -o "$out/run" --seq 1024 --seq 2048 --seq 4096 \
    --backend math --backend math_reduced --backend flash --backend efficient --backend cudnn

# A training step: the work of backward is launched by the autograd thread.
nsysprof capture -o "$out/block" --workload transformer_block --train --seq 1024 --warmup 20 --iterations 20 \
    --backend math --backend flash --backend cudnn

# Two processes at once on one GPU: their correlation ids collide.
nsysprof capture -o "$out/two-processes" -- bash -c '
    python3 workloads/sdpa.py --backend math --seq 1024 --iterations 10 & first=$!
    python3 workloads/sdpa.py --backend flash --seq 2048 --iterations 10 & wait $! && wait $first'
