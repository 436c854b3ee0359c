"""Why a service on one machine can't start or go on."""


class ServiceError(Exception):
    """The text says what happened and what to do."""


class HopelessError(ServiceError):
    """A part ended that would end again in the same way, until something is changed."""
