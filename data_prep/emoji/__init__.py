"""The embedded real data set: emoji artwork by several artists with the names Unicode gives it."""
