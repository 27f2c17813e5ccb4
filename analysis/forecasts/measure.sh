#!/usr/bin/env bash
# Measures the outcome of every forecast, base and change in turn, without a profiler. Refuses forecasts that are not committed.
set -euo pipefail
cd "$(dirname "$0")/../.."
case " $* " in
*" --dry "*) ;;
*) git diff --quiet HEAD -- analysis/forecasts/forecasts.csv && git ls-files --error-unmatch analysis/forecasts/forecasts.csv >/dev/null ;;
esac
for name in ${CASES:-$(python analysis/forecasts/cases.py list)}; do
    python analysis/forecasts/cases.py measure "$name" "$@" || echo "failed: $name" >&2
done
