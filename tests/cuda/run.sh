#!/usr/bin/env bash
# All checks on a machine with an NVIDIA device of compute capability 9.0 and CUDA 13 (or 12: CUDA_EXTRA=cuda12).
# Builds ggml-python with CUDA and edgedit with its extension into .venv-cuda, then checks; no check waits longer than
# CHECK_SECONDS in all. With --no-build the environment is taken as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."

VENV=${VENV:-.venv-cuda}
CUDA_EXTRA=${CUDA_EXTRA:-cuda13}
CHECK_SECONDS=${CHECK_SECONDS:-360}
GGML_CMAKE_ARGS="-DGGML_LLAMAFILE=ON -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90-real -DGGML_CUDA_GRAPHS=ON \
-DGGML_CUDA_NO_VMM=ON -DGGML_CUDA_NCCL=OFF"

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
if [ "${1:-}" != --no-build ]; then
  make cuda VENV="$VENV" GGML_CMAKE_ARGS="$GGML_CMAKE_ARGS" CUDA_ARCHITECTURES=90
  "$VENV/bin/pip" install -q --disable-pip-version-check "edgedit[test,$CUDA_EXTRA]"
fi

export EDGEDIT_REQUIRE_CUDA=1
export OMP_WAIT_POLICY=passive
began=$SECONDS
status=0
timeout "$CHECK_SECONDS" "$VENV/bin/python" -m pytest tests/cuda -rA --durations=10 -p no:cacheprovider || status=$?
timeout 60 "$VENV/bin/python" tests/cuda/timings.py || status=$?
echo "checks: $((SECONDS - began)) s, status $status"
exit "$status"
