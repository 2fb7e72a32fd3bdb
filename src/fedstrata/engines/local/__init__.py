"""The engine on this machine: workers in this process, or one process a worker."""
