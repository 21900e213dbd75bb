"""Django integration of the worker: configuration from settings and command line, and database duties.

Imported by ``management``, ``testing``, ``checks`` and ``apps``.
"""
