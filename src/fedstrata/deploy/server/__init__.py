"""A server: Flower behind one port, with a gate before it that only keys open, and the runs that it starts.

The process
    `federation_server` starts it, and is how others find it; it goes by a roll (`roll_watch`). Its `figures`.
At its port
    `auth_proxy` is the gate, `one_port` lets streams of runs in beside it; behind it `web_app`s: `long_poll`,
    `model_shelf`, `run_launcher`.
Runs
    `run_launcher` starts a `run_process`, if its folder is a good `run_place`; `run_book` knows them all.
"""
