#!/usr/bin/env bash
# Sets a machine up from the pieces in /root/in: one tar, cut, of code.tar.zst (paths under root/, with
# py-spy in root/in), site.tar.zst, scipy.tar.zst and te.tar.zst (site-packages), and the package
# zstandard. PREFIX and TORCH_SITE are for trying it elsewhere.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root="${PREFIX:-/root}"
torch="${TORCH_SITE:-/opt/torch/.venv/lib/python3.12/site-packages}"
cd "$root/in"
cat part? | tar x
rm part?
for one in env envte; do python3 -m venv --without-pip "$root/$one"; done
site=$(echo "$root"/env/lib/python3*/site-packages)
own=$(echo "$root"/envte/lib/python3*/site-packages)
mkdir -p "$root/tesite" "$root/work"
cat > unpack.py <<'P'
import sys, tarfile
sys.path.insert(0, ".")
import zstandard
stream = open(sys.argv[1], "rb")
packed = tarfile.open(fileobj=zstandard.ZstdDecompressor().stream_reader(stream), mode="r|")
packed.extractall(sys.argv[2], filter="fully_trusted")
P
python3 unpack.py te.tar.zst "$root/tesite" & te=$!
python3 unpack.py code.tar.zst "$(dirname "$root")" & code=$!
python3 unpack.py site.tar.zst "$site"
python3 unpack.py scipy.tar.zst "$site"
wait $te && wait $code
if [ -e py-spy ]; then install -m 755 py-spy "$root/env/bin/"; fi
printf '%s\n' "$root/slime" "$root/Megatron-LM" "$torch" > "$site/zz_machine.pth"
# Transformer Engine stands first, and looks for CUDA's libraries beside itself.
printf '%s\n' "$root/tesite" "$site" "$root/slime" "$root/Megatron-LM" "$torch" > "$own/zz_machine.pth"
ln -s "$torch/nvidia" "$own/nvidia"
# Long collections of garbage are written down where GC_PAUSES says so.
cp "$here/pauses.py" "$own/pauses.py"
echo 'import pauses' > "$own/zz_pauses.pth"
# The first job would compile all modules, in several processes at once.
setsid nohup sh -c '"$0/envte/bin/python" -m compileall -q -j 0 "$1" "$0/tesite" "$0/slime" "$0/Megatron-LM"
  PATH="$0/envte/bin:$PATH" "$0/envte/bin/python" -c "import torch, ray, sglang.srt.entrypoints.engine
import transformer_engine.pytorch, megatron.core.transformer"' "$root" "$site" > "$root/warm.log" 2>&1 < /dev/null &
date +%T
