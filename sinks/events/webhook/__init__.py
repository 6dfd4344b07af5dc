"""Events as POST requests to one receiver (https://www.standardwebhooks.com), each at least once, in the order of their keys."""

from sinks.events.webhook.options import Options
from sinks.events.webhook.sink import make, traits

__all__ = ["Options", "make", "traits"]
