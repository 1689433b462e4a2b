"""Host files, and the commands that start a run on the hosts they name.

Beside the modules lie host files: `local` and `2x_local` for this machine, and three p3dn.24xlarge clusters.

hostfile        the reader of host files
this_machine    facts of this machine that a printed command depends on
script_args     the training script's part of a printed command
launch_hvd      the mpirun command, with a reason for each part
print_byteps    the commands over BytePS, likewise
launch_byteps   command: scheduler, servers and workers on all hosts
byteps_command  the options of launch_byteps
addresses       the hosts that are this machine, and the addresses of all
parts           the processes of a run over BytePS, with their variables
part_command    the command of a part: here, or through ssh
run_parts       all parts run to their end; the failure of one ends the others
running_part    a started part: its output, its end
output          prefixes and log files
supervise       a process around each part, so that none outlives the launcher
"""
