#!/usr/bin/env bash
# Trains every scheme on the same 1.5 million bytes of this Python's standard library, one seed, and
# measures all of them at 512 to 16,384 tokens, with the training-free variants of the trained RoPE:
# results/schemes. An hour or two on 2 cores; killed, it continues. Options of lengthgen sweep may
# follow, such as --jobs 4.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

root=runs/schemes
.venv/bin/lengthgen sweep 'scheme=glob(*)' corpus=stdlib corpus.tokenizer=bytes train.tokens=1500000 \
  'eval.lengths=[512,1024,4096,16384]' eval.endpoints=4 runtime.wandb=off "runtime.root=$root" "$@"

variants=$(.venv/bin/lengthgen list variants | cut -f1 | paste -sd,)
.venv/bin/lengthgen eval "$root"/rope-tiny-* --lengths 512,1024,4096,16384 \
  --variants "$variants,ntk+logn,rerope+logn"
.venv/bin/lengthgen report "runtime.root=$root" --out report/schemes
