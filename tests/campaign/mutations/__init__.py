"""Damage by chance: valid files, ways to damage them, and what becomes of who reads them.

mutation     what a mutator says of what it did, and what has to become of it
digests      one short text for what a reader made of a file, to compare
inputs       small valid files of each kind, made by the package itself
more_inputs  those of other kinds: tables, OGB's own files, studies, cost models, runs of other models
case         a file, who reads it, and how it may be damaged
cases, more_cases     all of them
readers      the commands and functions that read
oracles      text formats read a second time, plainly, by code that shares nothing with the package's
text, arrays, hdf5, settings, checkpoints, places     mutators
fork         a process that has imported everything, and forks one child for each task
forked_ranks, rank_client     the same for the ranks of an mpirun
verdicts     what counts as a defect
campaign     runs tasks, mutations and others, and tells what became of each
"""
