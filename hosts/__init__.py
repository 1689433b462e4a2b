"""Hosts and the processes that start on them. Standard library only, but for Kubernetes' YAML.

addresses      numeric addresses, and the hosts that are this machine
hostfile       Open MPI's host files, and whether this machine allows so many ranks
networks       EFA, InfiniBand, TCP and rails: their variables, with reasons
shell          jobs and hosts as data, commands as text
plans          runs by the LAMB paper: options, jobs, what each rank of a cluster's job runs
mpirun         the mpirun command of a job
print_byteps   the commands of a job over BytePS
answer         questions about the host that it runs on
reach          conversations with hosts: whether they answer, and the cure where not
check          command: a look at all hosts before a run
launching/     a run as processes on hosts: planned, run to its end, started again
launch         command: a run on all hosts, and its restarts
supervise      around each part: none outlives the launcher
batch/         runs on clusters that start processes themselves
srun           command: Slurm's srun as the launcher's remote shell
slurm          command: a batch script for Slurm
kubernetes     command: a run's manifest
pod            command: one pod's part of a run
sagemaker      command: the call that starts a run on SageMaker
sagemaker_train     command: process 1 of a container there
health         command: a container's health
"""
