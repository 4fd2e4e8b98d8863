#!/usr/bin/env bash
# From a fresh machine to an extrapolation curve: installs into .venv, trains RoPE and ALiBi at 512
# tokens, evaluates both up to 16,384 and draws the figure. KEY=VALUE arguments go to both trainings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cat >&2 <<'TEXT'
This trains two small language models on this Python's own standard library, no network, account or
GPU needed, and measures them at 1 to 32 times their training length. After the installation it
takes about 6 minutes on 2 cores. If you stop it, the same command continues.

TEXT
source scripts/install.sh

began=$SECONDS
runs=()
for scheme in rope alibi; do
  runs+=("$(.venv/bin/lengthgen train scheme=$scheme runtime.wandb=off "$@" | sed -n 's/^run: //p')")
  echo "$scheme: trained and evaluated after $((SECONDS - began)) s" >&2
done
.venv/bin/lengthgen report "${runs[@]}" --out report
echo "done in $((SECONDS - began)) s; look at report/curve.png" >&2
