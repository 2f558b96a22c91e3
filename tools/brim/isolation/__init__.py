"""The conformance suite: proves on a real endpoint that no caller is hurt by a neighbour in the batch."""
