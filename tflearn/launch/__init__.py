"""Where jobs run: a topology is data; processes of this machine, Slurm and Kubernetes run it."""
