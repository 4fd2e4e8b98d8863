#!/usr/bin/env bash
# Makes a study of results/: bash scripts/results.sh NAME [OPTIONS of lengthgen sweep, KEY=VALUE].
#
# docs/results/ has a page on each study: its question, command, cost and results. books and smollm2 read a
# text of one's own: corpus=files corpus.path=FOLDER corpus.name=books. schemes reads the receptive fields
# of the first seed into results/probes.
#
# Runs go to runs/NAME, tables and figures to results/NAME. Killed, rerun to resume. An
# hour or more on 2 cores that multiply bf16 natively, twice that elsewhere; figure1 takes six,
# leaderboard and size eight, schemes twelve.
# --jobs N: runs at a time; --dry-run: what would be done, and how long it would take.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

studies="report baselines precision rates figure1 budget context books kerple variants nope_masks \
fire_positions fine_tuning schemes slow_schemes leaderboard leaderboard_rates conv_masks alibi_flat \
t5_rate more_tokens size train_1024 sinusoidal_scale second_bos tasks encoder_decoder smollm2 \
smollm2_python statistics"
name=${1-}
shift || true
if [[ " $studies " != *" ${name:-none} "* ]]; then
  echo "error: results.sh: no study ${name:-given}; there are: $studies" >&2
  exit 2
fi
extras=dev,slurm # smollm2 needs transformers
source scripts/install.sh

six=sinusoidal,rope,t5,alibi,nope,kerple
slow=deberta,gated_delta,path_attention,dape_kerple,dape_v2_kerple
explicit=asentmax,linear_attention # slow at 16k
given=(runtime.device=cpu "$@") # never of no words, of which the bash of macOS would end
alone=(runtime.threads=1 runtime.wandb=off)

# sweep NAME OVERRIDE...: trains what is left of it and evaluates it
sweep() {
  local root=runs/$1
  shift
  .venv/bin/lengthgen sweep eval=full "$@" "${alone[@]}" "runtime.root=$root" "${given[@]}"
}

# copied NAME RUN...: copies runs of another study that are not there yet; rows are added to a copy
copied() {
  local root=runs/$1 run
  shift
  mkdir -p "$root"
  for run in "$@"; do
    is_dry_run || [[ ! -d $run || -d $root/${run##*/} ]] || {
      rm -rf "$root/.copy"
      cp -r "$run" "$root/.copy"
      mv "$root/.copy" "$root/${run##*/}"
    }
  done
}

# after COMMAND...: a command on what was trained, unless nothing was to be done
after() {
  is_dry_run || .venv/bin/"$@"
}

is_dry_run() {
  [[ " ${given[*]} " == *" --dry-run "* ]]
}

of_report=(seed=1,2 train.tokens=3000000 eval.targets=64 'eval.reference_variants=[]')

report() {
  sweep report "scheme=$six" "${of_report[@]}"
  after lengthgen report runtime.root=runs/report --out results/report
}

baselines() {
  report
  local change
  for change in "scheme=t5 train.scheme_lr_ratio=1" \
    "scheme=sinusoidal scheme.parts.sinusoidal.scale=match"; do
    # shellcheck disable=SC2086  # two words
    sweep ablations $change seed=1,2 train.tokens=3000000 eval.targets=64 \
      'eval.reference_variants=[]' 'eval.lengths=[128,512,2048,16384]' runtime.cache=runs/report/.cache
  done
  after lengthgen report runs/report/t5-* runs/ablations/t5-* --out results/baselines/own_rate
  after lengthgen report runs/report/sinusoidal-* runs/ablations/sinusoidal-* \
    --out results/baselines/embedding_scale
}

precision() {
  sweep precision scheme=rope,alibi seed=1,2,3 train.precision=bf16,fp32 train.tokens=1500000 \
    eval.targets=64 'eval.lengths=[128,512,2048]' 'eval.reference_variants=[]'
  after lengthgen report runtime.root=runs/precision --out results/precision
}

# Two schemes have their least loss beyond the grid of the others. Of biases with few numbers the own
# rate alone is varied.
rates() {
  local grid others=cope,dynamic_bias,fox,transformer_xl,ssmax,grape_a,pope,gated_attention
  for grid in \
    "scheme=rope,alibi,nope,kerple train.lr=2e-3,4e-3,8e-3 train.scheme_lr_ratio=1,4,16,64" \
    "scheme=t5 train.lr=2e-3,4e-3,8e-3 train.scheme_lr_ratio=1,4,16,64,256" \
    "scheme=sinusoidal train.lr=5e-4,1e-3,2e-3,4e-3,8e-3" \
    "scheme=kerple_power train.lr=4e-3 train.scheme_lr_ratio=1,4,16" \
    "scheme=shaw train.lr=4e-3 train.scheme_lr_ratio=1,16,64" \
    "scheme=learned_absolute train.lr=4e-3 train.scheme_lr_ratio=0.25,1,16" \
    "scheme=fire,bam,alibi_learned,$others train.lr=4e-3 train.scheme_lr_ratio=1,16"; do
    # shellcheck disable=SC2086  # several words
    .venv/bin/lengthgen tune eval=full $grid train.tokens=2000000 "${alone[@]}" \
      runtime.root=runs/rates/runs --out results/rates "${given[@]}"
  done
}

chosen=(train.tuned=results/rates/tuned.yaml eval.targets=64)
long=(seed=1,2,3 train.tokens=12000000 "${chosen[@]}")

figure1() {
  sweep figure1 "scheme=$six" "${long[@]}" 'eval.protocols=[tail,alibi_nonoverlap]'
  sweep figure1 scheme=sinusoidal,rope,t5,alibi train.length=1024 "${long[@]}" \
    'eval.protocols=[tail,alibi_nonoverlap]' 'eval.lengths=[64,128,256,512,1024,2048,4096,8192,16384]' \
    'eval.reference_variants=[]'
  after lengthgen report runtime.root=runs/figure1 --out results/figure1
}

budget() {
  local eval=('eval.protocols=[tail]' 'eval.lengths=[128,256,512,1024,2048,4096,16384]'
    'eval.reference_variants=[]')
  sweep budget scheme=rope,alibi,t5,kerple,nope train.tokens=1500000,6000000,24000000 seed=1 \
    "${chosen[@]}" "${eval[@]}"
  # At 3 million those of report, but for T5 and KERPLE, which it trained at other rates.
  sweep report scheme=rope,alibi,nope "${of_report[@]}"
  sweep budget scheme=t5,kerple train.tokens=3000000 seed=1 "${chosen[@]}" "${eval[@]}"
  after lengthgen report results/figure1 runs/report/rope-* runs/report/alibi-* runs/report/nope-* \
    runs/budget/*-* scheme=rope,alibi,t5,kerple,nope train.length=512 --out results/budget
}

context() {
  local eval=('eval.protocols=[tail]' 'eval.lengths=[64,128,256,512,1024,2048,16384]'
    'eval.reference_variants=[]')
  sweep context scheme=alibi train.length=128 "${long[@]}" "${eval[@]}"
  sweep context scheme=rope train.length=128 seed=1 train.tokens=12000000 "${chosen[@]}" "${eval[@]}"
  after lengthgen report results/figure1 runs/context/*-* scheme=alibi,rope --out results/context
}

books() {
  sweep books corpus=pg19 scheme=rope,alibi seed=1 corpus.vocab_size=4096 \
    train.tokens=6000000 train.tuned=results/rates/tuned.yaml eval.targets=64 eval.endpoints=46 \
    'eval.lengths=[128,256,512,1024,4096,16384]' 'eval.reference_variants=[]'
  after lengthgen report runtime.root=runs/books --out results/books
}

kerple() {
  sweep kerple scheme=kerple,alibi,t5,rope seed=2,3 train.tokens=6000000 eval.targets=64 \
    train.tuned=results/rates/tuned.yaml eval.endpoints=32 eval.max_context=16384 \
    'eval.lengths=[512,2048,8192]' 'eval.reference_variants=[]' \
    'eval.protocols=[tail,last_k,alibi_nonoverlap,kerple,dape]'
  after lengthgen report runtime.root=runs/kerple --out results/kerple
}

variants() {
  local angles=pi,ntk,dynamic_ntk,yarn,llama3,longrope2
  local distances=rerope,leaky_rerope,selfextend,dual_chunk,lm_infinite,streaming_llm
  sweep variants scheme=rope "${long[@]}" eval.endpoints=32 'eval.reference_variants=[]' \
    'eval.lengths=[128,256,512,1024,4096,16384]'
  after lengthgen eval runs/variants/rope-* runtime.threads=1 --lengths 512,1024,4096 \
    --variants "$angles,$distances,window,window_sinks,logn,rerope+logn,leaky_rerope+logn"
  after lengthgen eval runs/variants/rope-* runtime.threads=1 --lengths 16384 \
    --variants "$angles,lm_infinite"
  after lengthgen report runtime.root=runs/variants --out results/variants
}

nope_masks() {
  sweep nope_masks scheme=nope "${long[@]}" eval.endpoints=32 'eval.lengths=[512,1024,4096,16384]' \
    'eval.reference_variants=[]'
  after lengthgen eval runs/nope_masks/nope-* runtime.threads=1 --lengths 512,1024,4096,16384 \
    --variants window,window_sinks,logn
  after lengthgen report runtime.root=runs/nope_masks --out results/nope_masks
}

fire_positions() {
  sweep fire_positions scheme=fire seed=1 train.tokens=6000000 train.tuned=results/rates/tuned.yaml \
    eval.targets=64 eval.endpoints=32 'eval.lengths=[128,256,512,1024,4096,16384]' \
    'eval.reference_variants=[]'
  after lengthgen eval runs/fire_positions/fire-* runtime.threads=1 --lengths 512,1024,4096,16384 \
    --variants window,window_sinks,clamp,clamp+window
  after lengthgen report runtime.root=runs/fire_positions --out results/fire_positions
}

fine_tuning() {
  local eval=(eval.targets=64 eval.endpoints=32 'eval.reference_variants=[]'
    'eval.lengths=[64,512,1024,2048,4096,8192,16384]')
  sweep fine_tuning scheme=rope seed=1,2 train.tokens=12000000 train.tuned=results/rates/tuned.yaml \
    "${eval[@]}"
  sweep fine_tuning study=pi_finetuning scheme.name=rope_pi +scheme.parts.pi.factor=4,1 seed=1,2 \
    "${eval[@]}"
  sweep fine_tuning scheme=rope scheme.name=rope_2048 seed=1 train.length=2048 train.lr=4e-3 \
    train.tokens=12000000 "${eval[@]}"
  after lengthgen report runtime.root=runs/fine_tuning --out results/fine_tuning
}

schemes() {
  local training=(train.tokens=6000000 eval.targets=64 eval.endpoints=32
    'eval.reference_variants=[]' eval.max_context=16384) lengths='128,256,512,1024,4096' tuned
  # PoPE and gated attention were trained before their own rates were tuned, which bring 0.03 nats.
  tuned=$(grep -oE '^[a-z]\w*' results/rates/tuned.yaml | grep -vxE 'pope|gated_attention' | paste -sd, -)
  sweep schemes "scheme=$tuned" seed=1 train.tuned=results/rates/tuned.yaml "${training[@]}" \
    "eval.lengths=[$lengths,16384]"
  # Without the upper bounds, which need a task, and those that train slowly (slow_schemes).
  sweep schemes "scheme=glob(*,exclude=[abacus,position_coupling,$slow,$explicit,$tuned])" \
    seed=1 "${training[@]}" "eval.lengths=[$lengths,16384]"
  sweep schemes "scheme=$explicit" seed=1 "${training[@]}" "eval.lengths=[$lengths]"
  sweep schemes "scheme=rope,alibi,t5,kerple,grape_a,bam,cope,fire,alibi_learned,kerple_power" seed=2,3 \
    train.tuned=results/rates/tuned.yaml "${training[@]}" "eval.lengths=[$lengths,16384]"
  sweep schemes scheme=dynamic_bias,transformer_xl,fox,rnope_swa,stick_breaking seed=2,3 \
    "${training[@]}" "eval.lengths=[$lengths,16384]"
  after lengthgen probe runs/schemes/*-s1-* --probes receptive_field,bias eval.endpoints=16 \
    runtime.threads=1
  after lengthgen report runtime.root=runs/schemes --out results/schemes
  after python scripts/receptive_fields.py runs/schemes/*-s1-*
}

slow_schemes() {
  sweep slow_schemes "scheme=rope,alibi,kerple,$slow" seed=1 \
    train.tokens=1500000 eval.targets=64 'eval.lengths=[128,512,2048]' 'eval.reference_variants=[]'
  after lengthgen report runtime.root=runs/slow_schemes --out results/slow_schemes
}

# The rates are those of results/rates.
leaderboard() {
  sweep leaderboard study=leaderboard seed=1,2,3 \
    scheme=rope,nope,alibi,rope_conv,nope_conv,alibi_conv
  sweep leaderboard study=leaderboard seed=1,2,3 scheme=t5,t5_conv train.scheme_lr_ratio=64
  sweep leaderboard study=leaderboard seed=1,2,3 scheme=kerple,kerple_conv \
    train.scheme_lr_ratio=4
  sweep leaderboard study=leaderboard seed=1,2,3 scheme=sinusoidal,sinusoidal_conv train.lr=2e-3
  after lengthgen report runtime.root=runs/leaderboard --out results/leaderboard
  after python docs/training_loss.py results/leaderboard/training.csv runs/leaderboard/*-s?-*
}

# Own rates of biases are those of leaderboard; t5_rate varies the one of T5.
leaderboard_rates() {
  local grid three="train.lr=2e-3,4e-3,8e-3"
  for grid in "scheme=rope,nope,alibi,rope_conv,nope_conv,alibi_conv $three" \
    "scheme=kerple,kerple_conv $three train.scheme_lr_ratio=4" \
    "scheme=t5,t5_conv $three train.scheme_lr_ratio=64" \
    "scheme=sinusoidal,sinusoidal_conv train.lr=1e-3,2e-3,4e-3"; do
    # shellcheck disable=SC2086  # several words
    .venv/bin/lengthgen tune study=leaderboard $grid seed=1,2 train.tokens=2000000 \
      "${alone[@]}" runtime.root=runs/leaderboard_rates/runs --out results/rates/leaderboard \
      "${given[@]}"
  done
}

conv_masks() {
  copied conv_masks runs/leaderboard/{nope,rope}_conv-*
  local options=(runtime.threads=1 --lengths 512,1024,4096,16384)
  after lengthgen eval runs/conv_masks/*_conv-* "${options[@]}" --variants window
  after lengthgen eval runs/conv_masks/nope_conv-* "${options[@]}" --variants window_sinks
  after lengthgen report runtime.root=runs/conv_masks --out results/conv_masks
  after lengthgen probe runs/conv_masks/nope_conv-* --probes position --variants window \
    runtime.threads=1
  is_dry_run || cat runs/conv_masks/nope_conv-*/probes.jsonl >results/conv_masks/probes.jsonl
}

alibi_flat() {
  copied alibi_flat runs/leaderboard/alibi_conv-*
  sweep alibi_flat study=leaderboard scheme=alibi_conv seed=1,2,3,4,5 \
    eval.endpoints=128 eval.targets=256 'eval.lengths=[512,4096,16384]'
  after lengthgen report runtime.root=runs/alibi_flat --out results/alibi_flat
}

t5_rate() {
  copied t5_rate runs/leaderboard/t5_conv-*-s1-* # one of the three, which need not be trained again
  sweep t5_rate study=leaderboard seed=1 scheme=t5_conv train.scheme_lr_ratio=1,16,64
  after lengthgen report runtime.root=runs/t5_rate --out results/t5_rate
}

more_tokens() {
  local longer=(study=leaderboard seed=1 train.tokens=24000000
    'eval.lengths=[128,512,1024,4096,16384]')
  sweep more_tokens "${longer[@]}" scheme=nope,rope
  sweep more_tokens "${longer[@]}" scheme=sinusoidal train.lr=2e-3
  after lengthgen eval runs/more_tokens/* --protocols alibi_nonoverlap --lengths 512 runtime.threads=1
  after lengthgen report runtime.root=runs/more_tokens --out results/more_tokens
  after python docs/training_loss.py results/more_tokens/training.csv runs/more_tokens/*
}

# The rate of the smaller models is the better of two here as well.
size() {
  .venv/bin/lengthgen tune scheme=rope_conv model=small train.lr=2e-3,4e-3 train.tokens=2000000 \
    eval=full "${alone[@]}" runtime.root=runs/size/rates --out results/rates/small "${given[@]}"
  local larger=(study=leaderboard model=small 'eval.lengths=[128,512,1024,2048,4096,16384]')
  sweep size "${larger[@]}" seed=1,2,3 scheme=rope_conv,nope_conv,alibi_conv
  sweep size "${larger[@]}" seed=1,2,3 scheme=kerple_conv train.scheme_lr_ratio=4
  sweep size "${larger[@]}" seed=1,2,3 scheme=t5_conv train.scheme_lr_ratio=64
  sweep size "${larger[@]}" seed=1,2,3 scheme=sinusoidal_conv train.lr=2e-3
  after lengthgen report runs/size/*-s?-* --out results/size
  after python docs/training_loss.py results/size/training.csv runs/size/*-s?-*
}

train_1024() {
  local longer=(study=leaderboard train.length=1024 seed=1
    'eval.lengths=[128,256,512,1024,2048,4096,16384]')
  sweep train_1024 "${longer[@]}" scheme=rope_conv,alibi_conv,nope_conv
  sweep train_1024 "${longer[@]}" scheme=kerple_conv train.scheme_lr_ratio=4
  local options=(runtime.threads=1 --lengths 2048,4096,16384)
  after lengthgen eval runs/train_1024/rope_conv-* "${options[@]}" --variants window,rerope
  after lengthgen eval runs/train_1024/{alibi,kerple}_conv-* "${options[@]}" --protocols swap
  after lengthgen report runtime.root=runs/train_1024 --out results/train_1024
}

sinusoidal_scale() {
  local own=(study=leaderboard scheme=sinusoidal train.lr=2e-3 seed=1)
  copied sinusoidal_scale runs/leaderboard/sinusoidal-*-s1-*
  sweep sinusoidal_scale "${own[@]}" scheme.parts.sinusoidal.scale=learned
  sweep sinusoidal_scale "${own[@]}" train.warmup_fraction=0.3
  after lengthgen report runtime.root=runs/sinusoidal_scale --out results/sinusoidal_scale
}

second_bos() {
  copied second_bos runs/more_tokens/nope-* runs/{size,train_1024}/nope_conv-*-s1-*
  local plugin=(--plugin scripts/second_bos.py runtime.threads=1)
  after lengthgen probe runs/second_bos/* "${plugin[@]}" --probes second_bos \
    --variants window,window_sinks
  after lengthgen probe runs/second_bos/* "${plugin[@]}" --probes position_after_bos
  is_dry_run || mkdir -p results/second_bos
  is_dry_run || cat runs/second_bos/*/probes.jsonl >results/second_bos/rows.jsonl
}

tasks() {
  local tasks=copy,copy_repeat,mqar,reverse,sort
  sweep tasks task=$tasks scheme=nope,rope,alibi,kerple,t5 seed=1,2,3
  # Past its table it goes on with the last row that was trained; as it is it has no value there.
  sweep tasks task=$tasks scheme=learned_absolute scheme.parts.learned_absolute.beyond=clamp \
    seed=1,2,3
  # Training has distances to 41: of the buckets to 128 those beyond keep their initial values.
  sweep tasks task=copy scheme=t5 scheme.name=t5_32 scheme.parts.t5.max_distance=32 seed=1,2,3
  # All distances from 18 on share a bucket, among them those of what is copied in training.
  sweep tasks task=copy scheme=t5 scheme.name=t5_18 scheme.parts.t5.max_distance=18 seed=1,2,3
  after lengthgen report runtime.root=runs/tasks --out results/tasks
}

encoder_decoder() {
  local characters=(model.name=two_layers model.n_layers=2 seed=1,2 task.length=10 task.longest=40
    train.length=22 train.batch_tokens=704 'eval.lengths=[2,4,6,8,10,12,14,16,20,24,28,32,36,40]')
  local copy=(model.arch=encoder_decoder task=copy train.tokens=704000 "${characters[@]}")
  local addition=(model.arch=encoder_decoder task=addition_reversed model.name=two_layers
    model.n_layers=2 seed=1,2 task.length=3 task.longest=12 train.length=13 train.batch_tokens=416
    train.tokens=665600 'eval.lengths=[1,2,3,4,5,6,7,8,9,10,11,12]')
  local reverse=(task=reverse train.tokens=704000 "${characters[@]}")
  local learned=(scheme=learned_absolute scheme.parts.learned_absolute.beyond=clamp)
  sweep encoder_decoder scheme=t5,alibi,kerple "${copy[@]}"
  sweep encoder_decoder "${learned[@]}" "${copy[@]}"
  sweep encoder_decoder model.arch=encoder scheme=nope,t5 "${reverse[@]}"
  sweep encoder_decoder scheme=t5,alibi,kerple "${addition[@]}"
  sweep encoder_decoder "${learned[@]}" "${addition[@]}"
  sweep encoder_decoder scheme=nope "${reverse[@]}"
  after lengthgen report runtime.root=runs/encoder_decoder --out results/encoder_decoder
}

# imported NAME: SmolLM2 as a run under runs/NAME, whose folder `run` names then
imported() {
  if is_dry_run; then
    echo "$1: imports a model and scores it; the head of scripts/results.sh says how long that takes" >&2
    exit
  fi
  local root=runs/$1
  local folder=$root/.smollm2
  if [[ ! -e $folder/tokenizer.json ]]; then
    .venv/bin/pip install --quiet --no-deps --target "$root/.packages" gguf==0.19.0 \
      accelerate==1.15.0 psutil==7.2.2
    PYTHONPATH=$PWD/$root/.packages .venv/bin/python scripts/smollm2.py "$folder"
  fi
  # Scored as it was trained, in bf16: fp32 takes twice as long, and changes the loss at T by 0.001.
  run=$(.venv/bin/lengthgen import "$folder" --name smollm2 corpus=python eval.endpoints=16 \
    eval.endpoints_per_document=1 eval.targets=128 eval.max_context=32768 eval.deduplicate=false \
    eval.precision=bf16 \
    'eval.lengths=[512,2048,8192,12288,16384]' 'eval.reference_variants=[]' \
    "runtime.root=$root" "${alone[@]}" runtime.device=cpu)
  # Factors of the others are L/T. These groups keep distances at 2T within 0.7 T.
  mkdir -p "$root/conf/variant"
  echo '{selfextend: {neighbours: 0.25, group: 4}}' >"$root/conf/variant/selfextend_2x.yaml"
}

# scored LENGTHS [VARIANT ...]: evaluates `run`; without a variant, as it is
scored() {
  local lengths=$1 variant
  shift
  for variant in "${@:-}"; do
    .venv/bin/lengthgen eval "$run" --config-dir "${run%/*}/conf" --lengths "$lengths" \
      ${variant:+--variants "$variant"} "${alone[@]}" >/dev/null
  done
}

# The most telling windows come first: one of 16k takes minutes.
smollm2() {
  local run
  imported smollm2
  scored 512,2048,8192,12288,16384
  scored 16384 yarn ntk window_sinks
  scored 12288 yarn ntk window_sinks
  scored 16384 dynamic_ntk pi window streaming_llm selfextend_2x dual_chunk
  scored 12288 dynamic_ntk pi window streaming_llm selfextend_2x dual_chunk
  scored 32768 "" yarn ntk streaming_llm
  after lengthgen report runtime.root=runs/smollm2 --out results/smollm2
}

smollm2_python() {
  local run
  imported smollm2_python
  scored 512,2048,8192,12288
  scored 12288 streaming_llm yarn
  after lengthgen report runtime.root=runs/smollm2_python --out results/smollm2_python
}

statistics() {
  after python scripts/simulate_statistics.py
}

"$name"
