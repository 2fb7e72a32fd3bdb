"""Real sites as processes: `server/` and `site/` do not import each other; `operators/` asks for runs and watches.

Flower carries the messages, and this package the keys, the processes and the runs around it.

Keys
    `keys`, which `authority` changes later; `certificate_watch`, `node_signature`, and `shut_out`, whom no key helps.
What server and sites say to each other
    `asking`, `served`, `site_reports`; with Flower, `flower` for its commands, the app `run_app`, `heartbeats`,
    `objects_under_way`.
What both keep and show
    `state`, `processes`, `logs`, `metrics`.
Before either begins
    `health` of a machine; a `package` for each.
"""
