"""What happens at a client: the trainer and its local step, probes, all-reduce between clients."""
