"""A site: it keeps a connection to the server, and the process that holds its data while that is needed.

Its command
    `client`, whose process with the data comes and goes (`on_demand`, `data_files`). It tells the server how it is
    doing (`site_reporter` over a `kept_connection`), and whoever asks its `figures`.
Its connection
    `supernode` is Flower's, which runs no app but ours; messages are answered in it (`answering`).
After a run
    `fetch` brings the model home.
"""
