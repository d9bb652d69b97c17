"""Bad input: files, command lines, variables and arguments of Python functions that are wrong in some way.

section      runs the cases that need their own processes, and the worker
worker       a process that has imported everything, and forks a child for each case
groups       the groups of cases that the worker has, beside random mutations (campaign.mutations)
guided       texts that Atheris changes towards new code of a parser, in a process for each format
cuts         files cut at every 4 KiB
claims       headers that claim 2^60 rows
code_in_files     pickles with code
strangers    files of another run, model or graph
command_line      values of every option of every command
calls, public     arguments of public Python functions
environment  environment variables, in separate processes
"""

from campaign.bad_input.section import SECTION

__all__ = ["SECTION"]
