"""OTLP over HTTP with protobuf: what is encoded, how it waits, and how it is sent.

Nothing here knows what a span is but ``trace``; metrics and logs have encoders of their own.
"""
