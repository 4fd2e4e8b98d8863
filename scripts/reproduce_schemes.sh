#!/usr/bin/env bash
# Trains every scheme on the same 1.5 million bytes of this Python's standard library, one seed, and
# measures all of them at 512 to 16,384 tokens, with the training-free variants of the trained RoPE:
# results/schemes. About an hour on 2 cores; killed, it continues. JOBS=N: N at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

root=runs/schemes
settings=(corpus.tokenizer=bytes train.tokens=1500000 'eval.lengths=[512,1024,4096,16384]'
  eval.endpoints=4 runtime.threads=1 runtime.wandb=off "runtime.root=$root")
.venv/bin/lengthgen list schemes | cut -f1 |
  xargs -P "${JOBS:-2}" -I{} .venv/bin/lengthgen train scheme={} "${settings[@]}"

variants=$(.venv/bin/lengthgen list variants | cut -f1 | paste -sd,)
.venv/bin/lengthgen eval "$root"/rope-tiny-* --lengths 512,1024,4096,16384 \
  --variants "$variants,ntk+logn,rerope+logn"
.venv/bin/lengthgen report "runtime.root=$root" --out report/schemes
