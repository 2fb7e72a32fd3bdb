"""Who learns what: label masking, secure sums, an enclave for clustering, differential privacy, and a statement."""

FEWEST = 3  # clients in a sum, and in the difference of two: over fewer, one would know what another sent
