"""Integrations with other software."""
