"""The port to the group coordinator and the two sides behind it."""
