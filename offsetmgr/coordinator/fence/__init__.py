"""Keeps a group for one service: it commits as a member, whose place a newer service takes."""
