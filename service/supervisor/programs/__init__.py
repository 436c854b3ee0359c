"""The programs of a service: how each is started, and when it is ready."""
