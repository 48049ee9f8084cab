"""How rows get from one subtask to another: partitioners, channels with credits, the wire."""

from penstock.exchange.channels import ChannelBroken, ReceiveChannel, SendChannel
from penstock.exchange.partitioners import Partitioner, make_partitioner

__all__ = ["ChannelBroken", "Partitioner", "ReceiveChannel", "SendChannel", "make_partitioner"]
