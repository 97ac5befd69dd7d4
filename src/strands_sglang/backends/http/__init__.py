"""HTTP for backends that are servers: connections, retries, time-outs, aborts."""
