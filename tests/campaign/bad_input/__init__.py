"""Bad input: files, command lines, variables and arguments of Python functions that nobody should give.

section      runs what needs processes of its own, and the worker
worker       a process that has imported everything, and forks a child for each case
groups       which groups of cases the worker has, beside mutations by chance (campaign.mutations)
guided       texts that Atheris changes where that reaches new code of a parser, in a process for each format
cuts         files cut at every 4 KiB
claims       headers that claim 2^60 rows
code_in_files     pickles with code
strangers    files of another run, model or graph
command_line      values of every option of every command
calls, public     arguments of public Python functions
environment  environment variables, in processes of their own
"""

from campaign.bad_input.section import SECTION

__all__ = ["SECTION"]
