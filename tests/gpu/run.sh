#!/usr/bin/env bash
# What a machine with a GPU and without Docker can show, in less than eight minutes: an environment with the GPU's ONNX Runtime,
# every answer of the embedded server against torch, isolation, tau(b) of 1 to 100 rows on the device, a tuning, and pages of it.
#
#   tests/gpu/run.sh           do it; figures go to $OUT (runs/gpu-DATE when unset)
#   tests/gpu/run.sh --check   say what would be done and what is missing; nothing is run
#
# PROVIDER=cpu takes the same steps, shorter, on a machine without a GPU. Further variables: SERVICES, BUDGET_S, VENV, PYTHON, LOGS,
# and WHEELS, a folder of wheels for a machine without a network.
# Ends with 0 when every step said yes, 1 when one said no, 2 when a variable is wrong, 3 when one could not tell.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 3

PROVIDER=${PROVIDER:-cuda}
SERVICES=${SERVICES:-image_classifier text_embedding}
BUDGET_S=${BUDGET_S:-470}
OUT=${OUT:-runs/gpu-$(date -u +%Y%m%dT%H%M%S)}
LOGS=${LOGS:-.cache/logs}
MODE=${1:-run}
STATUS=0

wrong() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 2
}

case $MODE in run | --check) ;; *) wrong "unknown argument $MODE" "--check is the only one" ;; esac
case $BUDGET_S in '' | *[!0-9]*) wrong "BUDGET_S is $BUDGET_S" "seconds, such as 470" ;; esac
for service in $SERVICES; do
  test -f "services/$service.yaml" || wrong "no service $service: services/$service.yaml is not there" "SERVICES='image_classifier'"
done
case $PROVIDER in
  cuda)
    VENV=${VENV:-.cache/gpu-venv} EXECUTION=CUDAExecutionProvider
    ISOLATE=(--requests 2000 --callers 128)
    DEVICE=(--seconds 25)
    TUNE=(--settings 3 --repeats 1 --tau-budget-ms 5000 --budget-s 45)
    ;;
  cpu)
    VENV=${VENV:-.venv} EXECUTION=CPUExecutionProvider
    ISOLATE=(--requests 200 --callers 32)
    DEVICE=(--cpu --points 4 --rounds 3 --seconds 1)
    TUNE=(--settings 1 --repeats 1 --run-ms 300 --tau-budget-ms 500 --budget-s 10)
    ;;
  *) wrong "PROVIDER is $PROVIDER" "cuda or cpu" ;;
esac
BRIM=$VENV/bin/brim

environment() {
  if test "$PROVIDER" = cpu; then
    test -x "$BRIM" || make VENV="$VENV" env
    return
  fi
  if test -n "${WHEELS:-}"; then export PIP_NO_INDEX=1 PIP_FIND_LINKS="$WHEELS"; fi
  make VENV="$VENV" env || return 3
  test -f "$VENV/.gpu" && return
  # Both packages are the module onnxruntime: the CPU's goes, the GPU's comes.
  "$VENV/bin/python" -m pip uninstall --quiet --yes onnxruntime &&
    "$VENV/bin/python" -m pip install --quiet --constraint requirements.lock -r requirements-gpu.lock && touch "$VENV/.gpu" || return 3
}

# Where ONNX Runtime finds no GPU it takes the CPU and says so in the server's log: then nothing after it counts.
provider() {
  log=$(ls -t "$LOGS"/triton-*.log | head -1)
  for service in $SERVICES; do
    grep -F "model $service: model.onnx on $EXECUTION" "$log" || { echo "$service did not run on $EXECUTION, see $log"; return 3; }
  done
}

gpu() {
  test "$PROVIDER" = cuda || return 0
  command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
}

# step NAME SECONDS COMMAND...: at most so long, and never past the budget of the whole.
step() {
  local name=$1 bound_s=$2 code=3 began=$SECONDS
  shift 2
  if test "$MODE" = --check; then
    printf '%s\t%s\t%s\n' "$name" "$bound_s" "$*"
    return
  fi
  local left_s=$((BUDGET_S - SECONDS))
  test "$left_s" -lt "$bound_s" && bound_s=$left_s
  if test "$bound_s" -le 0; then
    echo "no time left: BUDGET_S is $BUDGET_S" >"$OUT/$name.log"
  elif test "$(type -t "$1")" = function; then
    # timeout starts programs, so the function goes with a shell of its own.
    export -f "$1"
    timeout --kill-after=30 "$bound_s" bash -c "$1" >"$OUT/$name.log" 2>&1
    code=$?
  else
    timeout --kill-after=30 "$bound_s" "$@" >"$OUT/$name.log" 2>&1
    code=$?
  fi
  # What timeout ended, and what could not be started, has told nothing.
  case $code in 0 | 1) ;; *) code=3 ;; esac
  printf '%s\t%s\t%s s\n' "$name" "$(case $code in 0) echo yes ;; 1) echo no ;; *) echo 'could not tell' ;; esac)" "$((SECONDS - began))" | tee -a "$OUT/summary.tsv"
  test "$code" -eq 0 || tail -n 3 "$OUT/$name.log" | sed 's/^/  /'
  case $code in 1) STATUS=1 ;; 3) test "$STATUS" -eq 1 || STATUS=3 ;; esac
  return "$code"
}

if test "$MODE" = --check; then
  gpu || { echo "error: no GPU answers here (nvidia-smi); PROVIDER=cpu takes the same steps without one" >&2; STATUS=3; }
else
  mkdir -p "$OUT" || exit 3
  : >"$OUT/summary.tsv"
  export PROVIDER SERVICES VENV BRIM EXECUTION LOGS
  gpu >"$OUT/gpu.txt" || { echo "error: no GPU answers here (nvidia-smi)" >&2; exit 3; }
fi

step environment 260 environment || test "$MODE" = --check || exit 3
# shellcheck disable=SC2086 -- a list of names
step parity 120 "$BRIM" up $SERVICES --once
step provider 5 provider || test "$MODE" = --check || exit 3
for service in $SERVICES; do
  step "isolate-$service" 60 "$BRIM" isolate "$service" "${ISOLATE[@]}" --check identity --check poison_neighbours --check own_errors_only --out "$OUT/isolate-$service"
  step "device-$service" 60 "$BRIM" bench device "$service" "${DEVICE[@]}" --out "$OUT/device-$service"
  step "tune-$service" 90 "$BRIM" tune "$service" "${TUNE[@]}" --out "$OUT/tune-$service"
  for run in isolate device tune; do
    step "report-$run-$service" 20 "$BRIM" report "$OUT/$run-$service"
  done
done
exit "$STATUS"
