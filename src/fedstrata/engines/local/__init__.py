"""The engine on this machine: lanes in this process, or one process a lane."""
