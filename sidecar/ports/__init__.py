"""The Protocols at which rooms meet. Each has one contract test that every implementation runs."""
