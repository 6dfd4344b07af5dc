"""Events that services write in their own transactions: how they write them, and how rows of that table become topics.

What is listed here is all that a service needs; it loads neither Arrow nor a driver.
"""

from cdc.outbox.emit import emit, emit_async
from cdc.outbox.event import BadEvent, NoTransaction, OutboxError, OutboxMessages, OutboxTable, UnknownConnection

__all__ = ["BadEvent", "NoTransaction", "OutboxError", "OutboxMessages", "OutboxTable", "UnknownConnection", "emit", "emit_async"]
