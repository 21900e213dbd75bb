"""An app whose Tasks run in worker processes."""
