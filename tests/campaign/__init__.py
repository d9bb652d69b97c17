"""A campaign against faults, bad input and long runs: ``python tests/campaign --help``.

section      a section of the campaign, its session and its cases
sections     which sections there are
run          runs sections and writes what became of their cases, one JSON file a section
report       makes docs/reliability.md of those files
processes    commands as a user starts them, and whether they end as they should
children     what forked children have in common
found/       a TOML file a section: the defects that the campaign has found, with the regression test of each

Every other module or folder is one section. A section breaks things from outside: it damages files, ends processes, makes system
calls fail, cuts links. What it takes from the package itself is what it needs to make valid files and to read results.
"""
