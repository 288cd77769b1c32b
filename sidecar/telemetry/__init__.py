"""What is told of what happens: spans, metrics, logs and the audit trail."""
