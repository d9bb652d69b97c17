"""The models, one class in one module each.

A module here registers its class (``@register("name")``) and is named in :mod:`hpcgnn.nn.model_settings`, with the settings of
the class, so that a command knows them without importing torch. Any other program may register a class that states its own
``summary`` and ``settings``: the command offers it from then on.
"""
