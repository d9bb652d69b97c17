"""Reports about runs and studies, made from the files that these leave."""
