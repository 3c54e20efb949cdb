#!/usr/bin/env bash
# go.sh NAME LIMIT_S PART...: starts the parts in a session of their own, which outlives the call.
set -euo pipefail
root="${PREFIX:-/root}"
name=$1 limit=$2
shift 2
export PATH="$root/envte/bin:$root/env/bin:/opt/torch/.venv/bin:/usr/local/cuda/bin:$PATH"
export RAY_memory_monitor_refresh_ms=0 HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 COLUMNS=200
export GC_PAUSES="$root/out/$name/gc"
rm -rf "$root/bench" && mkdir -p "$root/bench" "$GC_PAUSES"
# The tree of a call is replaced by the next one's.
cp -r benchmarks apps "$root/bench/"
cd "$root/bench"
setsid nohup bash -c '"$0" -m benchmarks.slime.measure --python "$0" --pex "$1" --work "$1/work" \
  --slime "$1/slime" --megatron "$1/Megatron-LM" --out "$1/out/$2" --limit-s "$3" --apart 25 "${@:4}"
  echo "exit $?" > "$1/out/$2/done"' \
  "$root/envte/bin/python" "$root" "$name" "$limit" "$@" > "$root/out/$name/measure.log" 2>&1 < /dev/null &
echo "started $* $(date +%T)"
