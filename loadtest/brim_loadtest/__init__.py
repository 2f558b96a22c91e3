"""Load tests: Locust users in an open loop, traffic shapes, one outcome for every request, a verdict by class of callers.

``node`` imports Locust, which patches the whole process with gevent, so it runs in child processes only (``python -m
brim_loadtest``, started by ``run``). ``callers`` and the two lines are gevent's; everything else is plain Python.
"""
