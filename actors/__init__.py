"""The bodies of the Ray actors and what they own: plain classes, no Ray import."""
