#!/bin/bash
# Trains on several nodes and goes back into the queue until the run is finished: `sbatch docs/slurm.sh`, from the
# checkout. docs/training.md explains it. What to adapt is above the line; PyTorch must know the two options below
# (`torchrun --help | grep -e --signals-to-handle -e --shutdown-timeout`; 2.14 does).
#SBATCH --job-name=vit-b-16
#SBATCH --nodes=16
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@600

CONFIG=configs/training/laion400m-vit-b-16.toml
TRAIN_DATA=/data/laion400m
OUTPUT=runs
NAME=vit-b-16
GPUS=8
# ------------------------------------------------------------------------------------------------------------------

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=1

# Slurm sends SIGUSR1 to this script ten minutes before the time is up; srun passes it on to every torchrun.
time_is_up=no
trap 'time_is_up=yes; kill -USR1 "$step"' USR1

# One torchrun a node. It passes SIGUSR1 on to its processes only when told to, and kills them after 30 seconds unless
# told to wait for a checkpoint. The first node writes it, so a node that is done before must not end the others.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=0 .venv/bin/torchrun \
    --nnodes="$SLURM_NNODES" --nproc-per-node="$GPUS" --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-endpoint="$head:29500" --rdzv-id="$SLURM_JOB_ID" \
    --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 --shutdown-timeout=120 \
    -m training --config "$CONFIG" --train-data "$TRAIN_DATA" --output "$OUTPUT" --name "$NAME" --resume auto &
step=$!
wait "$step"
code=$?
while kill -0 "$step" 2>/dev/null; do # the signal ended wait, not the step
    wait "$step"
    code=$?
done

# torchrun's exit code does not tell a stopped run from a failed one; the weights are written when the run is finished.
if [ -e "$OUTPUT/$NAME/checkpoint.pt" ]; then
    exit 0
elif [ "$time_is_up" = yes ]; then
    scontrol requeue "$SLURM_JOB_ID"
else
    exit "$code" # it failed: running it again would fail again
fi
