#!/usr/bin/env bash
# Forecasts every case that has none yet; then commit forecasts.csv, before measure.sh is run. Arguments go to cases.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
for seq in 512 1024; do # what --swap takes its times from
    case " $* " in *" --dry "*) break ;; esac
    [ -e "analysis/forecasts/work/bench/$seq.csv" ] && continue
    python -m nsysprof bench --backend math --backend flash --backend cudnn --backend efficient --seq "$seq" \
        -o "analysis/forecasts/work/bench/$seq" --no-charts
    cp "analysis/forecasts/work/bench/$seq/results.csv" "analysis/forecasts/work/bench/$seq.csv"
done
for name in ${CASES:-$(python analysis/forecasts/cases.py list)}; do
    python analysis/forecasts/cases.py forecast "$name" "$@" || echo "failed: $name" >&2
done
