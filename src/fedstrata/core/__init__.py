"""What everything else speaks: messages, parts, plans, random streams, registry, errors.

A plan and its parts
    `plan` of a `part` each, whose class `part_class` checks, whose name the `registry` knows, and whose answers
    `contract` holds against what is allowed; `options` and `origin` say what an experiment may set and name.
    At the server (`server_parts`, `server_side`): `driver`, `selector`, `combiner`, `server_step`; the `system`; what
    is measured, a `metric`.
    At a client: `client_parts`, `client_context`, `sampler`.
A round
    `steps`, `messages`, `engine` and `wrapped_engine`; `client_info`, `flat_model`, `inputs`, `index`, `batch_norm`,
    `compression`; random streams, `rng` and `counter_rng`; `events`. Messages as bytes: `wire`, `tensor_file`.
What knows nothing of learning
    Bytes and files, `storage/`; this machine, `machine/`; what people and strangers get, `errors`, `plain_text`,
    `html`, `web_limits`, `warn_caller`.
"""
