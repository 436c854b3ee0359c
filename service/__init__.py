"""The HTTP side: the API, the commands, and the supervisor that runs everything on one machine."""
