#!/bin/sh
# Pack a manifest with the tasks of a Slurm array, then load it with the tasks of a job:
#
#     MANIFEST=birds.jsonl OUT=birds SPEC='name=utf8' sbatch --array=0-7 slurm.sh
#     OUT=birds sbatch --ntasks=3 slurm.sh
#
#SBATCH --job-name=bags
#SBATCH --requeue
# After a restart of a node Slurm must not empty the log.
#SBATCH --open-mode=append
set -eu

if [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    # srun starts the ranks: the script itself is none of them.
    srun bags load "$OUT" --worker auto --epochs "${EPOCHS:-1}" --digest
    exit
fi

# A task that Slurm requeues, since a node failed or it was preempted, continues at its
# last flush, by --resume. One that fails for another reason is requeued three times.
bags pack "$MANIFEST" "$OUT" --spec "$SPEC" --worker auto --resume && exit
# (SLURM_JOB_ID would be the entire array, in one of its tasks.)
[ "${SLURM_RESTART_COUNT:-0}" -ge 3 ] ||
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
exit 1
