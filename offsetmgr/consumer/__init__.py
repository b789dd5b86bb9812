"""Group consumers whose marks and acks survive a restart."""
