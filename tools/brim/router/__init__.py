"""Which replica takes a request: pure policies, what they know between two scrapes, and the picker that the gateway asks."""
