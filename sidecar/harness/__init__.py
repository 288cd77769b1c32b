"""Coding agents: their processes and runs, their works (each a worktree and a branch), and git."""
