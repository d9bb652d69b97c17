"""A zoo of PyG's layers and models, each distributed and compared with itself on one machine."""
