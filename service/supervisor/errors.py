"""Why a service on one machine can't start or go on."""


class ServiceError(Exception):
    """The text says what happened and what to do."""


class HopelessError(ServiceError):
    """A part ended, and would end in the same way again until the user changes something."""
