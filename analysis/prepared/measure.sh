#!/usr/bin/env bash
# Measures what the questions of README.md need, on one GPU, the most valuable first:
#
#     bash analysis/prepared/measure.sh OUT SECONDS [STEP ...]
#
# Ends before the SECONDS are over, and starts nothing that cannot take 15 of them. What is there already is kept: steps
# that are done are passed over, a sweep that was cut off goes on, also on another machine with EARLIER=FOLDER, which has
# what came back from there. After every step OUT is whole, in files of 15 MB at most: log.txt, results.tar.gz, and the
# report of each recording. A machine that is taken away costs the step that it was at.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
out=$1 until=$((SECONDS + $2))
shift 2
wanted=" $* "
read -ra nsysprof <<<"${NSYSPROF:-nsysprof}" # such as NSYSPROF="python3 -m nsysprof"
work=${WORK:-/tmp/nsysprof-measured}         # not in OUT, which may be emptied between two calls
mkdir -p "$out" "$work"
for folder in "$out" "${EARLIER:-$out}"; do
  # but for sweeps that were cut off: these go on only on their machine, where they are still in this folder
  [ -f "$folder/results.tar.gz" ] && tar xzf "$folder/results.tar.gz" --skip-old-files --exclude='*.partial' -C "$work"
  cp -n "$folder"/*.sqlite.gz* "$work" 2>/dev/null
done
export PYTHONUNBUFFERED=1 FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 # kernels of FlashAttention 4 are compiled once

say() { echo "$(date -u +%T) $*" | tee -a "$work/log.txt"; }

pack() {
  local report
  for report in "$work"/traces/*.sqlite; do
    [ -f "$report" ] || continue
    gzip -c "$report" >"$work/packed" && split -b 15M "$work/packed" "$work/$(basename "$report").gz." && rm "$report" "$work/packed"
  done
  tar czf "$out/results.new" -C "$work" --exclude='*.nsys-rep' --exclude='*.qdstrm' --exclude='*.sqlite*' \
    --exclude='*.bench/*.csv' --exclude=packed . && mv "$out/results.new" "$out/results.tar.gz" &&
    cp "$work/log.txt" "$out" && { cp -n "$work"/*.sqlite.gz* "$out" 2>/dev/null || true; }
}

# step NAME SECONDS COMMAND ...: runs it in the folder of results for so long at most. It is asked to end then, and killed
# with all that it started eight seconds later.
step() {
  local name=$1 most=$2 left=$((until - SECONDS - 15)) started=$SECONDS code
  shift 2
  [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
  [ -e "$work/$name.done" ] && return 0
  [ "$left" -ge 15 ] || { say "$name: no time left"; return 0; }
  most=$((most < left ? most : left))
  (cd "$work" && timeout --foreground -s INT -k 2 $((most + 8)) timeout --foreground -s INT "$most" "$@" >>"$name.log" 2>&1)
  code=$?
  [ "$code" = 0 ] && touch "$work/$name.done"
  say "$name: exit code $code after $((SECONDS - started)) s"
  pack || say "$name: could not be packed"
}

# bench NAME SECONDS OPTIONS ...: a sweep of that name, gone on with where it was cut off
bench() {
  local name=$1 most=$2 again=()
  shift 2
  [ -d "$work/$name.bench.partial" ] && again=(--resume)
  step "$name" "$most" "${nsysprof[@]}" bench --no-charts -o "$name.bench" "$@" "${again[@]}"
}

# check TOOL DTYPE HEAD_DIM: tiled_o6 under a tool of compute-sanitizer, which looks at this kernel alone
check() {
  step "$1-$2-$3" 30 compute-sanitizer --tool "$1" --kernel-name kns=tiled_o6 --error-exitcode 9 \
    python3 "$here/../../tests/kit/tiled_check.py" tiled_o6 --small --dtype "$2" --head-dim "$3"
}

backends() { printf -- '--backend %s ' "$@"; }
three='--runs 3 --samples 51' one='--runs 1 --samples 45'
small="--axis layers=12 --axis heads=12 --axis kv_heads=3 --axis width=768 --axis vocab=50304 --axis batch=8 --seq 1024"
# shellcheck disable=SC2046,SC2086  # options that are to be split
{
  step kernels 120 python3 "$here/../tiled-attention/o5-o6/measure.py" --rounds 25 --output kernels.csv
  bench best-kernels 240 --preset best-kernels $three
  for run in a b; do
    bench r1$run 40 --preset math-vs-flash $(backends math flash efficient cudnn) $one
    bench r3$run 60 --preset math-vs-flash $(backends math flash efficient cudnn) $three
  done
  bench train 60 --preset train $one $(backends math flash cudnn flash_attn_4)
  bench gpt-train 60 --workload gpt --train --dtype bf16 $small $one $(backends math flash cudnn flash_attn_4)
  step gpt-report 45 "${nsysprof[@]}" capture --workload gpt --train --dtype bf16 $small $(backends math flash cudnn) \
    --iterations 6 --no-overhead -o gpt-report
  step losses 90 python3 "$here/gpt2.py" --backend math flash cudnn --steps 100 -o losses.json
  bench selection 200 --preset selection $one
  for head_dim in 64 128; do
    for dtype in fp16 bf16; do
      check racecheck $dtype $head_dim
      check memcheck $dtype $head_dim
    done
  done
  step seeds 90 python3 "$here/gpt2.py" --backend math --seed 0 1 --steps 100 -o seeds.json
  bench decode-graph 40 --workload gpt --decode --cuda-graph $small $one $(backends math flash cudnn)
  bench decode 45 --workload gpt --decode $small $one $(backends math flash cudnn auto flash_attn_4)
  bench prefill 45 --workload gpt $small $one $(backends math flash cudnn auto flash_attn_4)
  step names 40 "${nsysprof[@]}" capture --workload sdpa --backward --seq 1024 --iterations 3 --no-overhead -o names \
    $(backends flash cudnn flash_attn_4)
  bench compiled 90 --workload gpt --decode --compile $small $one $(backends auto)
  bench backward 60 --preset backward $one
  bench deterministic 30 --backward --deterministic --seq 2048 $one \
    $(backends math flash efficient cudnn auto flash_attn_4)
  bench short-block 45 --preset short-block $one
  bench full 60 --preset math-vs-flash --full $one $(backends flash cudnn)
}
