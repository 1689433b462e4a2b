"""Hosts and the processes that start on them. Standard library only, but for Kubernetes' YAML.

hostfile       Open MPI's host files
addresses      numeric addresses, and the hosts that are this machine
networks       EFA, InfiniBand, TCP and rails: their variables, with reasons
shell          jobs and hosts as data, commands as text
plan_options   options from which a plan of the LAMB paper follows
pretraining    a plan of the LAMB paper as a job
mpirun         the mpirun command of a job
print_byteps   the commands of a job over BytePS
parts          processes of a run as data
exposure       public addresses at which they listen
over_mpirun    a run over Horovod: mpirun
over_byteps    a run over BytePS: scheduler, servers, ranks
answer         questions about the host that it runs on
reach          conversations with hosts: whether they answer, and the cure where not
check          command: a look at all hosts before a run
mpirun_output  whose line it is that mpirun shows, and which rank failed
output         lines, prefixes and log files of the parts
signals        signals as events
running        the parts run to their end, or all taken down
saved          checkpoints by their names
roster         hosts in use, spare, left out
restarts       a run that is started again after a failure
launch         command: a run on all hosts, and its restarts
supervise      around each part: none outlives the launcher
cluster_job    the script of each rank of a cluster's job, planned and checked
srun           command: Slurm's srun as the launcher's remote shell
slurm          command: a batch script for Slurm
batch/         what clusters are given that start processes themselves
gathering      pods of a run over BytePS begin and end together
byteps_pod     command: one pod's part of a run over BytePS
mpi_pod        command: one pod's part of a run over Horovod
kubernetes     command: a run's manifest
sagemaker      command: the call that starts a run on SageMaker
sagemaker_train     command: process 1 of a container there
health         command: a container's health
"""
