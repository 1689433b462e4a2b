"""Limits to waiting, and the names of missing ranks.

run_processes   the processes of a run that a rank can see on its host
heartbeat       signs of life between the ranks
heartbeat_wire  their connections and messages
scheduler       signs of life of BytePS's scheduler
watchdog        a communicator that ends its rank when a limit is reached
"""
