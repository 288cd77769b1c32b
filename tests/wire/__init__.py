"""Bytes and ids: what strangers send is read strictly, what passes is written exactly."""
