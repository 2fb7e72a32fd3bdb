"""A site: it holds its data, answers the server's requests, and gives what its owner allows.

A run
    `site_server` answers; a `session` for each run, with a `running_task`; a `chain` that the server cannot read.
What leaves it
    `policy/`, its owner's word. In secret: `privacy`, `enclave`, `features`. What is not asked twice, or of nobody:
    `counts_asked`, `feature_questions`, `sums_served`, `ledger`.
Its process
    `process` begins it, `service` puts it together, behind a `private_socket`; `process_state`; the data, `source`, and
    what it keeps, `client_state`.
After a run
    `label_names`.
"""
