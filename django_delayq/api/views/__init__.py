"""Views of the API, one module for each resource; each has its own ``urlpatterns``, included by ``api.urls``."""
