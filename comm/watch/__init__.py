"""Limits to waiting, and the names of those who are missing.

heartbeat      signs of life between the ranks
run_processes  the run as one of its processes sees it
watchdog       a limit to waiting, around any communicator
"""
