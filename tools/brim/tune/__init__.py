"""Choosing the batcher's settings: thousands are tried in the simulator, a handful on the real server, one is chosen by
what was measured."""
