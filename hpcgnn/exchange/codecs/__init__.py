"""Codecs, which turn rows of floats into the bytes that travel, and back: a module for each codec, and a factory that chooses."""

from hpcgnn.exchange.codecs.base import Codec, Codes, Differences
from hpcgnn.exchange.codecs.choice import CodecTools, make_codec, restored

__all__ = ["Codec", "CodecTools", "Codes", "Differences", "make_codec", "restored"]
