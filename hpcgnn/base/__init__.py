"""Foundations: errors, checks, settings, complete files, and facts of the process and the machine. Only ``host`` needs torch."""
