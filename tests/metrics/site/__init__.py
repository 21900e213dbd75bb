"""A project whose requests and workers are traced into a file, for tests with real processes."""
