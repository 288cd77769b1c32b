"""Measures the sidecar beside yardsticks, in one run: see ``docs/performance.md``."""
