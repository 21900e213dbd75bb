"""The admin: what failed, what waits, what runs, and the buttons to repair it. One module for each kind of page."""
