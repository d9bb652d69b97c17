"""Foundations that need no torch: errors, checks, settings, complete files, and facts of the process and the machine."""
