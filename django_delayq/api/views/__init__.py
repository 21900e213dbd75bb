"""The views, one module for each kind of thing; each has its own ``urlpatterns``."""
