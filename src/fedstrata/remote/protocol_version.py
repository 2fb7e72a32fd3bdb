"""The number of the protocol between servers and sites; whoever has another one is refused by name."""

PROTOCOL = 1  # raised whenever requests or replies change so that others cannot read them any more
