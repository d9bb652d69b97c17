"""Checks of an installation on the machine or cluster where it runs. Each check ends with one finding."""
