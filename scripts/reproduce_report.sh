#!/usr/bin/env bash
# Six schemes, two seeds, the default budget on this Python's standard library; measured with the
# swap test and by position: results/report. An hour and a half to three on 2 cores; killed, it
# continues. Options of lengthgen sweep may follow, such as --jobs 4.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

root=runs/report
.venv/bin/lengthgen sweep scheme=nope,rope,alibi,kerple,t5,fox seed=1,2 "runtime.root=$root" \
  corpus=stdlib runtime.wandb=off 'eval.protocols=[tail,swap,per_position]' "$@"
.venv/bin/lengthgen report "runtime.root=$root" --out report/six
