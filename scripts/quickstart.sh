#!/usr/bin/env bash
# From a fresh machine to an extrapolation curve: installs into .venv, trains RoPE and T5 at 128
# tokens side by side, evaluates both up to 4,096 and draws the figure. KEY=VALUE arguments go to both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cat >&2 <<'TEXT'
This trains two small language models on Python source (76 MB from the package index), and evaluates
them at 1/8 to 32 times their training length. No GPU and no account are needed. After the
installation it takes 7 minutes on 2 cores that multiply bf16 natively, twice that on others. Rerun
it to resume.

TEXT
source scripts/install.sh

began=$SECONDS
swept=$(.venv/bin/lengthgen sweep study=quickstart runtime.wandb=off "$@")
runs=() # from the column of this name: behind those of the keys that vary
while read -r run; do runs+=("$run"); done < <(awk -F '\t' '
  NR == 1 { for (i = 1; i <= NF; i++) if ($i == "run") column = i; next } { print $column }' <<<"$swept")
.venv/bin/lengthgen report "${runs[@]}" --out report
echo "done in $((SECONDS - began)) s; open report/report.html" >&2
