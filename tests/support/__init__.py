"""Real servers and faults for the tests: Redis (alone, cluster, sentinel), PostgreSQL, a misbehaving TCP proxy."""
