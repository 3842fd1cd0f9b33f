#!/bin/bash
# What it shows: one Slurm job is one Ray cluster and one run; a job that ends or is requeued is continued by the next.
# What it needs: nodes with 8 GPUs, this checkout and its environment on a file system that all nodes share.
# Use: sbatch --nodes=4 experiments/recipes/cluster/slurm.sh experiments/recipes/paper_7b.toml runs/paper_7b
# Never run. The commands in it are those of the two-node test (tests/rl/test_two_nodes.py).
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@1800
set -euo pipefail
recipe=$1 out=$2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head --lines=1)
port=$((20000 + SLURM_JOB_ID % 20000))

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    ray start --head --node-ip-address="$head" --port="$port" --disable-usage-stats --block &
if ((SLURM_JOB_NUM_NODES > 1)); then
    sleep 20
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" --overlap \
        ray start --address="$head:$port" --disable-usage-stats --block &
fi
until [[ $(ray list nodes --address="$head:$port" --filter state=ALIVE --format=json | grep --count '"node_id"') -ge $SLURM_JOB_NUM_NODES ]]; do
    sleep 5
done

resume=()
if [[ -e $out/config.json ]]; then resume=(--resume); fi
# Half an hour before the end of the job's time: stop after the step, with a checkpoint.
trap 'memagent stop "$out"; scontrol requeue "$SLURM_JOB_ID"' TERM
memagent train "$recipe" --out "$out" "${resume[@]}" \
    verl.trainer.nnodes="$SLURM_JOB_NUM_NODES" verl.trainer.n_gpus_per_node=8 cluster.address="$head:$port" &
wait $!
