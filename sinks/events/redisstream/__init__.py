"""Events as entries of Redis streams, each under an id made of its position."""

from sinks.events.redisstream.channel import make, traits
from sinks.events.redisstream.options import Options

__all__ = ["Options", "make", "traits"]
