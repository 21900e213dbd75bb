"""What the workers of the acceptance tests grind."""
