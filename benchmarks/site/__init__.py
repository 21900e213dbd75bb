"""A minimal Django project: our side of the comparisons, as a user would run it (events, leases and hygiene on)."""
