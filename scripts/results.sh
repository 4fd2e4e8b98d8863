#!/usr/bin/env bash
# Makes a study of results/: bash scripts/results.sh NAME [OPTIONS of lengthgen sweep or tune].
#
#   rates      learning rate and own rate of six schemes, by the loss at T on the tuning split
#   precision  training in bf16 against fp32 at equal seeds
#   figure1    six schemes at T = 512 and four at T = 1024, 12 million tokens, three seeds; needs rates
#
# Runs go to runs/NAME; killed, the same command continues. Hours on 2 cores that multiply bf16
# natively; with --jobs N, N runs at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

name=${1:?name a study: rates, precision or figure1}
shift
usual=(runtime.threads=1 runtime.wandb=off)
six=sinusoidal,rope,t5,alibi,nope,kerple

rates() {
  .venv/bin/lengthgen tune "scheme=$six" train.lr=2e-3,4e-3,8e-3 train.scheme_lr_ratio=1,4,16,64 \
    train.tokens=2000000 "${usual[@]}" --out runs/rates "$@"
}

precision() {
  .venv/bin/lengthgen sweep scheme=rope,alibi seed=1,2,3 train.precision=bf16,fp32 \
    'eval.lengths=[128,512,2048]' 'eval.reference_variants=[]' "${usual[@]}" \
    runtime.root=runs/precision "$@"
}

figure1() {
  local common=(seed=1,2,3 train.tokens=12000000 train.tuned=results/rates/tuned.yaml
    eval.targets=64 'eval.protocols=[tail,alibi_nonoverlap]' "${usual[@]}")
  .venv/bin/lengthgen sweep "scheme=$six" "${common[@]}" runtime.root=runs/figure1 "$@"
  .venv/bin/lengthgen sweep scheme=sinusoidal,rope,t5,alibi train.length=1024 "${common[@]}" \
    runtime.root=runs/figure1_1024 "$@"
}

case $name in
rates | precision | figure1) "$name" "$@" ;;
*)
  echo "results.sh: no study $name; there are rates, precision and figure1" >&2
  exit 2
  ;;
esac
