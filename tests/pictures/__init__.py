"""Pictures of the admin's pages, taken by a browser of the example shop: ``python -m tests.pictures``."""
