"""Who learns what: label masking, secure sums, an enclave for clustering, differential privacy, and a statement."""
