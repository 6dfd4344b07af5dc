"""Events as messages of Kafka, in transactions that hold how far they go."""

from sinks.events.kafka.options import Options
from sinks.events.kafka.sink import make, traits

__all__ = ["Options", "make", "traits"]
