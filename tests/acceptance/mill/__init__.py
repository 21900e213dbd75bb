"""Tasks that the workers of the acceptance tests run."""
