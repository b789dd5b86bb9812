"""Looks into consumer groups and changes them: history, resets, doctor."""
