#!/usr/bin/env bash
# In the product's tree, on a machine without a registry:
#   machine.sh unpack               with a.tar.zst beside it: packages, compiled in the background
#   machine.sh run SECONDS PART...  with b.tar.zst and own.tar.xz beside it: the rest, then the
#                                   parts; what there is after SECONDS goes to OUT
# pack.sh makes the files. PREFIX and TORCH_SITE are for trying it elsewhere.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root="${PREFIX:-/root}"
torch="${TORCH_SITE:-/opt/torch/.venv/lib/python3.12/site-packages}"
env="$root/env"
unpack() {
  PYTHONPATH="$here" python3 -c '
import sys, tarfile
if sys.argv[1].endswith(".xz"):
    packed = tarfile.open(sys.argv[1], "r:xz")
else:
    import zstandard
    stream = zstandard.ZstdDecompressor().stream_reader(open(sys.argv[1], "rb"))
    packed = tarfile.open(fileobj=stream, mode="r|")
packed.extractall(sys.argv[2], filter="fully_trusted")' "$1" "$2"
}
if [ ! -d "$env" ]; then
  python3 -m venv --without-pip "$env"
  site=$(echo "$env"/lib/python3*/site-packages)
  # The machine's scipy and sklearn want another numpy, and transformers takes them where they are.
  printf '%s\n' "import sys; sys.modules.update(scipy=None, sklearn=None)" "$torch" \
    > "$site/zz_machine.pth"
fi
site=$(echo "$env"/lib/python3*/site-packages)
if [ "$1" = unpack ]; then
  unpack "$here/a.tar.zst" "$site"
  # Modules are compiled while the next files travel.
  setsid nohup "$env/bin/python" -m compileall -q -j 0 "$site" > "$root/compile.log" 2>&1 < /dev/null &
  echo "unpacked $(date +%T)"
  exit 0
fi
unpack "$here/b.tar.zst" "$site" &
other=$!
mkdir -p "$root/own"
unpack "$here/own.tar.xz" "$root/own"
wait $other
export PATH="$env/bin:/opt/torch/.venv/bin:/usr/local/cuda/bin:$PATH"
top=$PWD
export PYTHONPATH="$top:$top/libs/turnwise/src:$top/libs/taubench/src:$top/libs/sandbox/src:$root/own"
export HF_HUB_OFFLINE=1 COLUMNS=200 TOKENIZERS_PARALLELISM=false
# TRL runs with the machine's own Python: its datasets need a newer NumPy than SGLang's environment
# has. What that Python lacks of ours lies behind its own packages.
mkdir -p "$root/lacking"
for one in pydantic pydantic_core annotated_types typing_inspection typing_extensions.py msgspec multiprocess; do
  [ ! -e "$site/$one" ] || ln -sfn "$site/$one" "$root/lacking/$one"
done
cat > "$root/peer" <<P
#!/bin/sh
PYTHONPATH="\$PYTHONPATH:$root/own/for_peer:$root/lacking" exec "${PEER:-/opt/torch/.venv/bin/python3}" "\$@"
P
chmod +x "$root/peer"
echo "start $(date +%T)"
"$env/bin/python" -m benchmarks.one_gpu.measure --out "$root/out" --limit-s "$2" --peer-python "$root/peer" \
  "${@:3}" > "$root/measure.log" 2>&1
tail -c 6000 "$root/measure.log"
cp "$root/out/results.json" "$OUT/" 2>/dev/null
tar czf "$OUT/one_gpu.tgz" -C "$root" --exclude=checkpoints --exclude='*.safetensors' out measure.log
tail -n 40 "$root"/out/*/logs/engine.log 2>/dev/null | cut -c1-220
echo "end $(date +%T)"
