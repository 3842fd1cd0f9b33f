#!/usr/bin/env bash
# Measure a machine with one GPU in a quarter of an hour: `make gpu`, or
#
#     experiments/studies/speed/gpu.sh [FOLDER [PART ...]]        runs/gpu, and all parts in order
#
#   prepare   the model and the study's data, which need no GPU
#   warm      the warm start of the study of prose; MODEL names another model or adapter to train, and leaves it out
#   recipe    experiments/recipes/smollm2_1gpu.toml for STEPS steps (16)
#   step      a training step part by part, ours beside verl's own loop
#   order     chunk before memory beside memory before chunk, at the shape of a 7B model
#
# Each part has a limit in seconds, and one that fails or takes too long does not stop the next. FOLDER gets a log of each
# part, the rows of each measurement and summary.txt, a line a part. This script has never run as a whole.
set -uo pipefail
cd "$(dirname "$0")/../../.."

out=${1:-runs/gpu}
shift || true
parts=${*:-prepare warm recipe step order}
bin=${BIN:-.venv/bin}
device=${DEVICE:-cuda}
steps=${STEPS:-16}
prose=experiments/studies/prose
warm=${MODEL:-runs/prose/warm/model}
speed="$bin/python -m experiments.studies.speed"

# Run a command with a limit in seconds, its output in the part's log; add its status and time to the summary.
limited() {
    local name=$1 seconds=$2 began=$SECONDS
    shift 2
    echo "$name: $*"
    # The interrupt lets a training run end with a checkpoint after its current step.
    timeout --signal=INT --kill-after=90 "$seconds" "$@" >>"$out/$name.log" 2>&1
    local status=$?
    [ $status -eq 124 ] && status="limit of $seconds s"
    echo "$name: status $status, $((SECONDS - began)) s; $(tail -n 1 "$out/$name.log")" | tee -a "$out/summary.txt"
}

prepare() {
    limited prepare 300 "$bin/memagent" model smollm2
    for task in needle update hop; do
        documents sft $task 300 2 100
        # Both changes of a value do not fit into one chunk.
        [ $task = update ] || documents train1 $task 600 1 300
        documents train $task 400 2 200
        documents train4 $task 400 4 400
        documents dev $task 24 2 9
    done
}

# documents NAME TASK N CHUNKS SEED
documents() {
    limited prepare 60 "$bin/memagent" data "prose_$2" --n "$3" --chunks "$4" --seed "$5" --model smollm2 \
        --out "runs/prose/$1_$2.parquet"
}

warm() {
    [ -n "${MODEL:-}" ] || limited warm 240 "$bin/memagent" sft $prose/warm_start.toml --out runs/prose/warm \
        "model.device=$device" --resume
}

recipe() {
    limited recipe 420 "$bin/memagent" train experiments/recipes/smollm2_1gpu.toml --out "$out/recipe" \
        "model.path=$warm" "model.device=$device" "verl.trainer.total_training_steps=$steps"
}

step() {
    limited step 180 $speed train "device=$device" "model=$warm" prompts=16 rollouts=8 steps=3 --out "$out/step.json"
}

order() {
    limited order 150 $speed read --measure order shape=qwen2.5-7b chunk_tokens=5000 chunks=3 rounds=1 \
        --out "$out/order.json"
}

for part in $parts; do
    case $part in
    prepare | warm | recipe | step | order) ;;
    *) echo "no part $part; choose from prepare, warm, recipe, step, order" >&2 && exit 2 ;;
    esac
done
case " $parts " in
*" warm "*) ;;
*" recipe "* | *" step "*)
    [ -n "${MODEL:-}" ] || [ -e "$warm" ] || { echo "$warm is missing: the part warm makes it; MODEL names another model" >&2; exit 2; } ;;
esac
mkdir -p "$out"
{
    date --utc +"%Y-%m-%d %H:%M UTC"
    git log --oneline --max-count=1 2>/dev/null
    nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>&1
} | tee "$out/machine.txt"
for part in $parts; do
    "$part"
done
