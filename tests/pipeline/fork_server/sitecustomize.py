"""Spark's Python processes, forked from a server that has imported what they need: ``python sitecustomize.py SOCKET``.

Spark starts a Python for each kind of planning, each environment and each stream. Such a Python forks a new worker
whenever one has committed a write or failed a task. All of them import the same modules, which takes longer than most
tests compute. With this folder in PYTHONPATH and :data:`ADDRESS` in the environment, Spark's Python has the server fork
a process with its files, environment and path, and waits until that ends.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

#: environment variable with the path of the server's socket
ADDRESS = "TESTS_FORK_SERVER"
_MODULES = (
    "django.db.models",
    "django_delayq.pipeline.events",
    "django_delayq.pipeline.jobs",
    "django_delayq.pipeline.table",
    "django_delayq.pipeline.writer",
    "pandas",
    "psycopg",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
)


def _let_fork(address: str) -> None:
    """Let the server run this process's module, and end with it."""
    request = {"arguments": sys.orig_argv[2:], "environ": dict(os.environ), "path": sys.path, "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"."], [0, 1, 2])
        server.sendall(json.dumps(request).encode() + b"\n")
        for number in (0, 1, 2):
            os.close(number)
        server.recv(1)
    os._exit(0)


def serve(address: str) -> None:
    """Fork a process for each request, until this process is ended."""
    for name in _MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()  # each worker collects garbage after each of its tasks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address + ".new")
        listener.listen(64)
        Path(address + ".new").rename(address)
        while True:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run(client)
            client.close()


def _run(client: socket.socket) -> None:
    """Become the process that a client describes, and run its module."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(client, 1, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    request = json.loads(client.makefile().readline())
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    sys.path[:] = request["path"]
    module, *sys.argv[1:] = request["arguments"]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
elif ADDRESS in os.environ and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark."):
    _let_fork(os.environ[ADDRESS])
