"""Random damage: valid files, ways to damage them, and the outcome of the commands and functions that read them.

mutation     the description of a mutation, and of the expected outcome
digests      a short text for the result of reading a file, to compare results
inputs       small valid files of each kind, made by the package itself
more_inputs  other kinds of files: tables, OGB's files, studies, cost models, runs of other models
case         a file, its reader, and the ways to damage it
cases, more_cases     all cases
readers      the commands and functions that read files
oracles      second, simple parsers of text formats, which share no code with the package's parsers
text, arrays, hdf5, settings, checkpoints, places     mutators
fork         a process that has imported everything, and forks one child for each task
forked_ranks, rank_client     the same for the ranks of an mpirun
verdicts     the outcomes that count as defects
campaign     runs tasks, mutations and others, and reports their outcomes
"""
