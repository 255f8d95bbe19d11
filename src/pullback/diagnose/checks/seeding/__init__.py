"""Seeds that are accepted and mean something else."""
