"""What happened, for whoever looks from outside: spans, metrics, logs, and the audit trail."""
