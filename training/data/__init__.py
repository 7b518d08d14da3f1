"""From shards to batches: which samples, in which order, decoded how."""
