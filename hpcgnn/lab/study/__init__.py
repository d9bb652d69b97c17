"""Studies: many runs of one specification, recorded line by line, with their statistics, tables and targets."""
