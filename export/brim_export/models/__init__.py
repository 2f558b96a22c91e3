"""Factories of the models that ship with Brim."""
