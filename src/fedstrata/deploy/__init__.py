"""Real sites: keys, a server, a client a site, and runs over them. Flower carries the messages."""
