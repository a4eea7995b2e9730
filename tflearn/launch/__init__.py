"""Where jobs run: a topology is data; processes of this machine, Slurm,
Ray and Kubernetes run it.
"""
