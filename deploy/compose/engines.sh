#!/usr/bin/env bash
# Builds TensorRT engines on the GPU that will run them, then ends. An engine fits one kind of GPU, one TensorRT and one graph: what
# is there is kept as long as none of them has changed.
#
#   engines.sh "trtexec --onnx=GRAPH --saveEngine=PLAN ..." ...
set -euo pipefail
test "$#" -gt 0 || { echo "error: no engine is named" >&2; exit 2; }

value() { # value OPTION WORD...: what follows --OPTION=
  local option=$1 word
  shift
  for word in "$@"; do
    case $word in --"$option"=*) printf '%s\n' "${word#*=}"; return ;; esac
  done
  echo "error: no --$option= in: $*" >&2
  return 2
}

machine=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader | sort -u)
tool=$(trtexec --help 2>&1 | sed -n 's/.*\(TensorRT v[0-9]*\).*/\1/p' | sort -u)
test -n "$tool" || { echo "error: trtexec does not say of which TensorRT it is" >&2; exit 3; }
for line in "$@"; do
  read -ra words <<<"$line"
  graph=$(value onnx "${words[@]}")
  plan=$(value saveEngine "${words[@]}")
  key=$(printf '%s\n' "$machine" "$tool" "$line" "$(sha256sum <"$graph")" | sha256sum | cut -d' ' -f1)
  if test -s "$plan" && test "$(cat "$plan.key" 2>/dev/null)" = "$key"; then
    echo "$plan is up to date"
    continue
  fi
  rm -f "$plan.key"
  "${words[@]/#--saveEngine=*/--saveEngine=$plan.part}"
  mv "$plan.part" "$plan"
  printf '%s\n' "$key" >"$plan.key"
done
