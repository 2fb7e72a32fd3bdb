"""Real sites: keys, a server, a client a site, and runs over them. Flower carries the messages.

Keys
    `keys`, `authority`, `certificate_watch`, `node_signature`.
A server
    `server` starts Flower behind one port: `flower`, `one_port`, `auth_proxy`, `web_app`, `long_poll`,
    `objects_under_way`; it goes by a roll (`roll_watch`) and hears how sites are doing (`site_reports`).
A site
    `client`, whose process with the data comes and goes (`site_on_demand`, `data_files`); `app` and `answering`
    inside Flower's; `site_reporter`, `kept_connection`, `shut_out`; `fetch` brings the model home.
Runs
    `submit`, `run_app`, `run_queue`, `run_orders`, `run_launcher`, `run_process`, `run_place`, `run_book`, `run_copy`,
    `model_shelf`.
What operators look at, and what both sides need
    `status`, `overview`, `board_console`, `metrics` with `server_figures` and `site_figures`, `health`, `logs`;
    `asking`, `served`, `state`, `processes`, `heartbeats`, `backup`, `package`.
"""
