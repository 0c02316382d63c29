"""Ray: settings, actor options, typed handles, start and stop, the Python client."""
