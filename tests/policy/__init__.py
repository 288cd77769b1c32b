"""Policies: files, decisions, reload, verbs."""
