"""Servers and fault injection for the tests: Redis (alone, cluster, sentinel), PostgreSQL, and a faulty TCP proxy."""
