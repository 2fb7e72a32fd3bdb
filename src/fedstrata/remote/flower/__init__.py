"""Flower carries the requests: membership, authentication, launching and the audit trail are its own."""
