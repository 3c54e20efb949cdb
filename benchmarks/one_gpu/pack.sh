#!/usr/bin/env bash
# pack.sh SITE PYTHON OUT [TRL]: what machine.sh unpacks on a machine without a registry.
# SITE: site-packages for Python 3.12 beside the machine's torch, with SGLang and the package zstandard;
# PYTHON: an interpreter whose site-packages have this product's compiled wheels and tau_trait.
set -euo pipefail
site=$1 python=$2 out=$3
here=$(cd "$(dirname "$0")" && pwd)
large="numpy numpy.libs sgl_kernel flashinfer tokenizers pydantic_core tvm_ffi"
left="scipy|scipy.libs|cryptography"
mkdir -p "$out"
if [ ! -e "$out/b.tar.zst" ]; then
  (cd "$site" && tar c $(ls | grep -vxE "${large// /|}|$left") | zstd -9 -q -f -o "$out/a.tar.zst")
  (cd "$site" && tar c $large | zstd -9 -q -f -o "$out/b.tar.zst")
  cp -r "$site/zstandard" "$out/"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
own=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# What names a distribution is looked for by it, which tau_trait's is.
for one in tokendelta toolparse tau_trait "tau_trait-*.dist-info"; do
  cp -r "$own"/$one "$work/"
done
# TRL, if there is a folder of it and of what it needs beside the machine's own packages.
[ $# -lt 4 ] || cp -r "$4" "$work/for_peer"
find "$work" -name __pycache__ -prune -exec rm -rf {} +
tar c -C "$work" . | xz -T0 -6 > "$out/own.tar.xz"
cp "$here/machine.sh" "$out/"
ls -l "$out"
