"""May a run begin on these nodes? What `launch/slurm.sh smoke` asks each of them."""
