"""Real sites as processes: `server/` and `site/` do not import each other; `operators/` asks for runs and watches.

Flower carries the messages. What both sides share lies here.

Keys
    `keys` are made, and changed later by whoever holds the `authority`; `certificate_watch`, `node_signature`; errors
    of a site that is `shut_out`.
What server and sites say to each other
    `asking`, `served`, `site_reports`; with Flower, `flower` for its commands, the app `run_app`, `heartbeats`,
    `objects_under_way`.
What both keep and show
    `state`, `processes`, `logs`, `metrics`.
Before either begins
    `health` of a machine; a `package` for each.
"""
