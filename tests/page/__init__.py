"""The admin page in a real browser, in front of a real sidecar."""
