#!/usr/bin/env bash
# Measures what the questions of README.md need, on one GPU, the most valuable first:
#
#     bash analysis/prepared/measure.sh OUT SECONDS [STEP ...]
#
# Starts nothing that cannot take 15 of the SECONDS that are left, and ends before they are over. OUT holds log.txt and
# results.tar.gz, which is whole after every step: a machine that is taken away costs the step it was at. What OUT has
# already is kept: steps that are done are passed over, a sweep that was cut off goes on.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
out=$1 until=$((SECONDS + $2))
shift 2
wanted=" $* "
read -ra nsysprof <<<"${NSYSPROF:-nsysprof}" # such as NSYSPROF="python3 -m nsysprof"
work=$(mktemp -d)
mkdir -p "$out"
[ -f "$out/results.tar.gz" ] && tar xzf "$out/results.tar.gz" -C "$work"
export PYTHONUNBUFFERED=1 FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 # kernels of FlashAttention 4 are compiled once

say() { echo "$(date -u +%T) $*" | tee -a "$out/log.txt"; }

pack() {
  tar czf "$out/results.new" -C "$work" --exclude='*.nsys-rep' --exclude='*.qdstrm' --exclude='*.csv' . &&
    mv "$out/results.new" "$out/results.tar.gz"
}

# step NAME SECONDS COMMAND ...: runs it in the folder of results for so long at most
step() {
  local name=$1 most=$2 left=$((until - SECONDS - 5)) started=$SECONDS code
  shift 2
  [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
  [ -e "$work/$name.done" ] && return 0
  [ "$left" -ge 15 ] || { say "$name: no time left"; return 0; }
  (cd "$work" && timeout -s INT -k 5 "$((most < left ? most : left))" "$@" >"$name.log" 2>&1)
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

backends() { printf -- '--backend %s ' "$@"; }
three='--runs 3 --samples 51' one='--runs 1 --samples 45'
small="--axis layers=12 --axis heads=12 --axis kv_heads=3 --axis width=768 --axis vocab=50304 --axis batch=8 --seq 1024"
# shellcheck disable=SC2046,SC2086  # options that are to be split
{
  bench best-kernels 240 --preset best-kernels $three
  for run in a b; do
    bench r1$run 40 --preset math-vs-flash $(backends math flash efficient cudnn) $one
    bench r3$run 60 --preset math-vs-flash $(backends math flash efficient cudnn) $three
  done
  bench train 90 --preset train $one $(backends math flash cudnn flash_attn_4)
  bench gpt-train 90 --workload gpt --train --dtype bf16 $small $one $(backends math flash cudnn flash_attn_4)
  step gpt-report 60 "${nsysprof[@]}" capture --workload gpt --train --dtype bf16 $small $(backends math flash cudnn) \
    --iterations 6 --no-overhead -o gpt-report
  step losses 150 python3 "$here/gpt2.py" --backend math flash cudnn --steps 100 -o losses.json
  step seeds 150 python3 "$here/gpt2.py" --backend math --seed 0 1 --steps 100 -o seeds.json
  bench backward 90 --preset backward $one
  bench selection 240 --preset selection $one
  bench decode-graph 40 --workload gpt --decode --cuda-graph $small $one $(backends math flash cudnn)
  bench decode 60 --workload gpt --decode $small $one $(backends math flash cudnn auto flash_attn_4)
  bench prefill 60 --workload gpt $small $one $(backends math flash cudnn auto flash_attn_4)
  bench compiled 120 --workload gpt --decode --compile $small $one $(backends auto)
  bench short-block 60 --preset short-block $one
  bench deterministic 30 --backward --deterministic --seq 2048 $one \
    $(backends math flash efficient cudnn auto flash_attn_4)
  bench full 90 --preset math-vs-flash --full $one $(backends flash cudnn)
}
