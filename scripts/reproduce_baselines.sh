#!/usr/bin/env bash
# What the rate of T5's own parameters and the size of sinusoidal positions bring, next to the runs of
# scripts/reproduce_report.sh: results/baselines. Half an hour on 2 cores that multiply bf16 natively;
# killed, it continues. Options of lengthgen sweep may follow, such as --jobs 4.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/reproduce_report.sh "$@"

root=runs/ablations
for change in "scheme=t5 train.scheme_lr_ratio=1" \
  "scheme=sinusoidal scheme.parts.sinusoidal.scale=match"; do
  # shellcheck disable=SC2086  # two words
  .venv/bin/lengthgen sweep $change seed=1,2 \
    train.tokens=3000000 eval.targets=64 'eval.reference_variants=[]' 'eval.lengths=[128,512,2048,16384]' \
    runtime.threads=1 runtime.wandb=off "runtime.root=$root" runtime.cache=runs/report/.cache "$@"
done
.venv/bin/lengthgen report runs/report/t5-* $root/t5-* --out report/own_rate
.venv/bin/lengthgen report runs/report/sinusoidal-* $root/sinusoidal-* --out report/embedding_scale
