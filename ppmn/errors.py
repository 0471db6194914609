"""The one kind of error that a person sees as a sentence."""


class InputError(ValueError):
    """An input cannot be used; the message is one sentence that names the value and the limit.

    Examples:
        >>> import ppmn
        >>> ppmn.load("no such model")
        Traceback (most recent call last):
        ppmn.errors.InputError: no such model is neither a model folder nor a shipped model (compact)
    """
