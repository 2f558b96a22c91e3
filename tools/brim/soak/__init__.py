"""Steady load for a long time: does throughput stay, and does nothing grow?"""
