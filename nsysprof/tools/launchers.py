"""What the launchers of jobs tell each process of its place in the job, by environment variables."""

from __future__ import annotations

# torchrun, Open MPI, MPICH and its kin, Slurm; the first that is set counts.
PLACE_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
}
