"""Limits to waiting, and the names of those who are missing.

wire           authenticated messages of bounded length
heartbeat      signs of life between the ranks
run_processes  the run as one of its processes sees it
addresses      addresses at which rank 0 listens
watchdog       a limit to waiting, around any communicator
"""
