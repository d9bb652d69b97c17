"""The models, one class in one module each, with its settings.

A module here registers its class (``@register("name")``), and so may any program: the command offers it, its help and its
settings from then on.
"""
