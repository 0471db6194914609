"""The one kind of error that a person sees as a sentence."""


class InputError(ValueError):
    """What was handed in cannot be used; the message is one sentence that names the value and the limit."""
