"""Lag and status of any consumer group, whoever commits its offsets."""
