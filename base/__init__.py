"""Foundations of every other package.

errors        exceptions that end a program: one line and an exit code
command_line  a parser with one-line errors, numbers in their ranges
options       options as fields of dataclasses, from which parsers and configurations are derived
json_files    JSON from files that somebody else may have written
yaml_files    YAML as nodes, from such files
files         files that appear whole or not at all, checksums
sealed        frames that show who has sent them
locks         exclusive locks between processes
claims        one process has a folder, and others say which
tables        one table as text and as Markdown
page          a report as one HTML file
drawing       figures of matplotlib, also as SVG for such a page
quantities    digits, shares and durations for people
progress      a bar on a terminal, lines with the time left elsewhere
processes     child processes that end as a whole
workers       a function called on many jobs at once, in worker processes
control_groups  limits of the control groups that this process is in
memory        memory that processes can still take here
notify        a command of the user's that hears what becomes of a run
failures      notes, and a checkpoint in memory, that failing ranks leave for their launcher
launchers     places of processes as launchers announce them
threads       the number of threads for MXNet in a process
student       t-tests, and Holm's correction for many of them
machine       description of a machine and of the load on it
"""
