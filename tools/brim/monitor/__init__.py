"""A real Prometheus on this machine, for tests and demonstrations: its programs, and a server that is gone afterwards."""
