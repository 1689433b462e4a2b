"""Hosts and the processes that start on them. Standard library only.

hostfile       Open MPI's host files
addresses      numeric addresses, and the hosts that are this machine
shell          jobs and hosts as data, commands as text
pretraining    a plan of the LAMB paper as a job
mpirun         the mpirun command of a job
print_byteps   the commands of a job over BytePS
parts          processes of a run over BytePS as data
exposure       public addresses at which they listen
output         lines, prefixes and log files of the parts
running        the parts run to their end, or all taken down
supervise      around each part: none outlives the launcher
launch_byteps  command: a run over BytePS on all hosts
"""
