#!/usr/bin/env bash
# Six schemes, three seeds, 60 million tokens at model=small on a GPU, measured at 64 to 16,384 tokens:
# results/gpu. Killed, or stopped by --limit, it continues:
#     bash scripts/gpu_results.sh --limit 510                   # again and again, until it says done
#     CORPUS=wikitext103 bash scripts/gpu_results.sh train.tokens=120000000
# KEY=VALUE arguments and options of lengthgen sweep follow. JOBS: runs at a time, which share a GPU; OUT: where
# the report goes. Without .venv, a PYTHON that has the dependencies will do; CORPUS=stdlib needs no network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit=
if [ "${1-}" = --limit ]; then
  limit=${2:?--limit needs a number of seconds}
  shift 2
fi

python=${PYTHON:-python3}
if [ -x .venv/bin/python ]; then
  python=$PWD/.venv/bin/python
elif PYTHONPATH=$PWD "$python" -c 'import lengthgen.cli, lengthgen.pipeline, lengthgen.report.report' 2>/dev/null; then
  export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} # not installed
else
  source scripts/install.sh
  python=$PWD/.venv/bin/python
fi

# Batch and rate are between those of train=default and train=gpu; neither is tuned for a scheme.
words=()
device=cuda
root=runs/gpu
for word in scheme=sinusoidal,rope,t5,alibi,nope,kerple seed=1,2,3 model=small train.length=512 \
  "corpus=${CORPUS:-python}" train.tokens=60000000 train.batch_tokens=32768 train.lr=2e-3 \
  train.precision=bf16 runtime.wandb=off "runtime.root=$root" "runtime.device=$device"; do
  case " $*" in *" ${word%%=*}="*) ;; *) words+=("$word") ;; esac # what is given takes its place
done
for word in "$@"; do
  case $word in
    runtime.root=*) root=${word#*=} ;;
    runtime.device=*) device=${word#*=} ;;
  esac
done
count='import torch; print(3 * max(1, torch.cuda.device_count()))'
[ "$device" != cuda ] || words+=(--jobs "${JOBS:-$("$python" -c "$count")}")
stopping=()
[ -z "$limit" ] || stopping=(timeout --foreground --signal=TERM "$((limit > SECONDS ? limit - SECONDS : 1))")

code=0
"${stopping[@]}" "$python" -m lengthgen sweep "${words[@]}" "$@" || code=$?
if [ "$code" -eq 124 ] || [ "$code" -eq 143 ]; then
  echo "stopped after $SECONDS s; rerun to resume" >&2
  exit 0
fi
[ "$code" -eq 0 ] || exit "$code"
"$python" -m lengthgen report "runtime.root=$root" --out "${OUT:-results/gpu}"
echo "done: ${OUT:-results/gpu}" >&2
