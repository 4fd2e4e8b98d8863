#!/usr/bin/env bash
# Five tasks, six schemes, two seeds: accuracy on lengths up to four times those of training:
# results/tasks. Some hours on 2 cores; killed, it continues. Options of lengthgen sweep may follow.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

root=runs/tasks
.venv/bin/lengthgen sweep task=copy,copy_repeat,addition,sort,mqar \
  scheme=nope,rope,alibi,kerple,t5,learned_absolute seed=1,2 "runtime.root=$root" runtime.wandb=off "$@"
.venv/bin/lengthgen report "runtime.root=$root" --out report/tasks
