#!/bin/bash
# Everything that has to be known of the Triton kernels and of SEMA's windows on a GPU, in under 8 minutes; stops where
# something is not right.
#     bash benchmarks/gpu.sh | tee gpu.txt
set -euo pipefail
cd "$(dirname "$0")/.."
export OPEN_CLIP_LINEAR_TRITON=1
python -m benchmarks.gpu --device cuda
python -m evaluate speed --device cuda --dtype bfloat16 --n 197 577 1025 4097 16385 65537 --longest-softmax 65537 \
    --output runs/gpu/speed.json
python -m evaluate speed --device cuda --dtype float32 --quick --model ViT-B-16-eq7mean ViT-B-16-sema \
    --image-size 224 448 896 --batch-size 16 --output runs/gpu/towers.json
