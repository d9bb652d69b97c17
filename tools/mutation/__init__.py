"""Tests of the tests: planted faults, and mutants that are drawn from the source. CONTRIBUTING.md says how to run both."""
