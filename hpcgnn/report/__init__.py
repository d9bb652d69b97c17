"""Pages about runs and studies, from the files that they leave."""
