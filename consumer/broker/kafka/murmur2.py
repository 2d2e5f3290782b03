"""murmur2, the hash with which Kafka's own clients choose a partition; ours choose the same one."""

from __future__ import annotations

import struct

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


def partition_of(key: bytes, partitions: int) -> int:
    """The partition number Kafka's default partitioner gives a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The 32-bit hash as Kafka computes it (org.apache.kafka.common.utils.Utils.murmur2)."""
    length = len(data)
    words = length >> 2
    h = 0x9747B28C ^ length
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * _M) & _MASK
        h = (h * _M ^ (k ^ (k >> 24)) * _M) & _MASK
    rest = data[words << 2 :]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)
