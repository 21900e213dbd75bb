"""Minimal Django project for our side of the comparisons, configured as by a user (events, leases and hygiene on)."""
