"""What everything else speaks: messages, parts, plans, random streams, registry, errors.

A plan and its parts
    `plan` of a `part` each, whose class `part_class` checks, whose name the `registry` knows, and whose answers
    `contract` holds against what is allowed; `options` and `origin` say what an experiment may set and name.
    At the server (`server_parts`, `server_side`): `driver`, `selector`, `combiner`, `server_step`; and the `system`.
    At a client: `client_parts`, `client_context`, `sampler`.
A round
    `steps`, `messages`, `engine` and `wrapped_engine`; `client_info`, `flat_model`, `inputs`, `index`, `batch_norm`,
    `compression`; random streams, `rng` and `counter_rng`; `events`.
Bytes and files
    `wire`, `tree`, `stored`, `tensor_file`, `files`, `file_lock`, `toml`, `event_lines`, `json_log`, `archives`.
This machine, and words for people
    `threads`, `child_process`, `parent_line`, `platforms`, `quick_imports`; `errors`, `plain_text`, `html`,
    `web_limits`.
"""
