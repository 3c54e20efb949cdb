#!/usr/bin/env bash
# wait.sh NAME SECONDS: until the parts are over or the time is; then brings to OUT what there is.
set -uo pipefail
root="${PREFIX:-/root}"
name=$1 until=$((SECONDS + $2))
while [ $SECONDS -lt $until ] && [ ! -e "$root/out/$name/done" ]; do sleep 2; done
cd "$root/work"
for part in */run; do
  echo "== ${part%/run}: $(wc -l < "$part/metrics.jsonl" 2>/dev/null || echo 0) rows"
  grep -h -E "^(error|It |No rise|Nothing|resumes|first run|job |report|stopping)" "${part%/run}/launcher.log" | tail -n 6 | cut -c1-300
done
cp "$root/out/$name/results.json" "$OUT/" 2>/dev/null
tail -n 30 "$root/out/$name/measure.log"
tar czf "$OUT/$name.tgz" --exclude='*.zip' --exclude='*/logs/ray/*' --exclude=checkpoints \
  --exclude='slime-*' --exclude=dumps --exclude=trace.json --exclude=shapes --exclude=data --exclude=episodes.jsonl . 2>/dev/null
ls -l "$OUT"; cat "$root/out/$name/done" 2>/dev/null; date +%T
