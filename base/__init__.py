"""Foundations of every other package: errors, files, locks, numbers, progress, processes, machine."""
