#!/usr/bin/env bash
# Five tasks, six schemes, two seeds: accuracy on lengths up to four times those of training, and
# beside it how text extrapolates under five of the schemes: results/tasks. About two hours on 2
# cores; killed, it continues. Options of lengthgen sweep may follow, such as --jobs 2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

root=runs/tasks
tasks=copy,copy_repeat,addition,sort,mqar
all=(seed=1,2 "runtime.root=$root" runtime.wandb=off runtime.threads=1)
.venv/bin/lengthgen sweep task=$tasks scheme=nope,rope,alibi,kerple,t5 "${all[@]}" "$@"
# Past its table it goes on with the last row that was trained; as it is it has no value there.
.venv/bin/lengthgen sweep task=$tasks scheme=learned_absolute \
  scheme.parts.learned_absolute.beyond=clamp "${all[@]}" "$@"
.venv/bin/lengthgen sweep scheme=nope,rope,alibi,kerple,t5 train.length=256 train.tokens=1000000 \
  eval.lengths=[256,512,1024,2048,4096] eval.endpoints=8 "${all[@]}" "$@"
.venv/bin/lengthgen report "runtime.root=$root" --out report/tasks
