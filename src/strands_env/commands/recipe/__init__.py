"""Evaluations as plain values: names and options from which any process builds tasks, environments and models.

`strands-env eval` reads them from its command line, a worker process from a message, `rescore` from a saved run.
"""
