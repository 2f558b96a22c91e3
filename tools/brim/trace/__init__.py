"""One request followed: caller, gateway, queue, batch, compute and back, and who shared its batch."""
