#!/usr/bin/env bash
# Locks third_party/python/NAME-requirements.txt into NAME.lock, and what ./pants
# installs into build-support/pants/requirements.lock: exact versions and hashes,
# no addresses. What is locked already stays unless a requirement forbids it.
#
# Usage: build-support/lock.sh [--check] [--upgrade | --upgrade-package=PACKAGE]
#
# --check changes nothing, and fails if something would change.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
uv_version="0.13.9"
cache="${XDG_CACHE_HOME:-${HOME}/.cache}/pants-setup"
uv="${cache}/uv-${uv_version}/bin/uv"

check=""
upgrade=()
for argument in "$@"; do
  case "${argument}" in
    --check) check=yes ;;
    --upgrade | --upgrade-package=*) upgrade+=("${argument}") ;;
    *)
      sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
done

if [ ! -x "${uv}" ]; then
  python3 -m venv "${cache}/uv-${uv_version}"
  "${cache}/uv-${uv_version}/bin/python" -m pip --disable-pip-version-check -qq \
    install "uv==${uv_version}"
fi

# LOCK REQUIREMENTS ARGUMENT...
lock() {
  local target="$1" source="$2" output="$1"
  shift 2
  if [ -n "${check}" ]; then
    output="${target}.check"
    cp "${target}" "${output}"
  fi
  "${uv}" pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-annotate --no-header ${upgrade[@]+"${upgrade[@]}"} "$@" \
    --output-file "${output}" "${source}"
  if [ -n "${check}" ]; then
    if ! diff -u "${target}" "${output}"; then
      rm "${output}"
      echo "lock.sh: ${target} is not what ${source} gives; run build-support/lock.sh" >&2
      exit 1
    fi
    rm "${output}"
  fi
}

cd "${here}/pants"
lock requirements.lock requirements.in --override overrides.in --python-version 3.9

# pytest before default, and default before trackers and minilm, which name them as their constraints.
cd "${here}/../third_party/python"
for name in pytest mypy ruff default trackers minilm clients; do
  overrides=()
  if [ -f "${name}-overrides.txt" ]; then overrides=(--override "${name}-overrides.txt"); fi
  lock "${name}.lock" "${name}-requirements.txt" --python-version 3.11 \
    ${overrides[@]+"${overrides[@]}"} \
    --python-platform x86_64-manylinux_2_28 \
    ${PIP_FIND_LINKS:+--find-links "${PIP_FIND_LINKS}"}
done
