#!/usr/bin/env bash
# Six schemes, two seeds, 3 million tokens of the corpus python, measured at 64 to 16,384 tokens on 64
# held-out documents: results/report. An hour on 2 cores that multiply bf16 natively, two elsewhere;
# killed, it continues. Options of lengthgen sweep may follow, such as --jobs 4.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

root=runs/report
.venv/bin/lengthgen sweep scheme=sinusoidal,rope,t5,alibi,nope,kerple seed=1,2 \
  train.tokens=3000000 eval.targets=64 'eval.reference_variants=[]' \
  runtime.threads=1 runtime.wandb=off "runtime.root=$root" "$@"
.venv/bin/lengthgen report "runtime.root=$root" --out report/six
