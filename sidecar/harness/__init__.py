"""Coding agents: their works, each a worktree and a branch, and the git that serves them."""
