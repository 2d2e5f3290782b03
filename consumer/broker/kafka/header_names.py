"""Header names: Kafka keeps any bytes as the name of a header, and aiokafka reads none that is not UTF-8: it raises for
the whole partition, at that record for ever. Here what a broker answers is made readable before aiokafka sees it."""

from __future__ import annotations

import struct
from typing import Any, Final

from aiokafka import codec
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import calc_crc32c, decode_varint

# A batch of version 2, as Kafka writes them since 0.11: base offset, length, leader's epoch, version, checksum, what it
# is, and so on; its records come after HEAD bytes. What came before had no headers.
LENGTH_AT, VERSION_AT, CHECKSUM_AT, KIND_AT, COUNT_AT, HEAD = 8, 16, 17, 21, 57, 61
VERSION: Final = 2
BEFORE_LENGTH_ENDS = 12
CODECS: Final = {1: codec.gzip_decode, 2: codec.snappy_decode, 3: codec.lz4_decode, 4: codec.zstd_decode}
CODEC_MASK = 0x07
UNREADABLE = ord("?")


def is_unreadable_name(error: BaseException) -> bool:
    """Whether aiokafka gave up because of such a name."""
    return isinstance(error, UnicodeDecodeError) or isinstance(error.__cause__, UnicodeDecodeError)


def read_any_names(client: Any) -> None:
    """From now on aiokafka's network client `client` hands on only what can be read. It costs a second reading of each
    record, so it is left to a member that met such a name."""
    send = client.send

    async def sent(node: Any, request: Any, **how: Any) -> Any:
        response = await send(node, request, **how)
        if isinstance(request, FetchRequest):
            response.topics = [
                (topic, [(*rest, readable(records)) for *rest, records in partitions])
                for topic, partitions in response.topics
            ]
        return response

    client.send = sent


def readable(records: bytes) -> bytes:
    """The batches of a partition as they came, but for those that hold a name which is not UTF-8: there each byte of it
    that is no ASCII is a question mark. What is broken otherwise stays so, and is told by aiokafka. Pure."""
    parts: list[bytes] = []
    at = 0
    while at + HEAD <= len(records or b""):
        end = at + BEFORE_LENGTH_ENDS + int(struct.unpack_from(">i", records, at + LENGTH_AT)[0])
        if end > len(records) or end <= at:
            break
        parts.append(_readable(records[at:end]))
        at = end
    return b"".join([*parts, records[at:]]) if parts else records


def _readable(batch: bytes) -> bytes:
    try:
        return _with_readable_names(batch) if _has_unreadable_name(batch) else batch
    except Exception:  # noqa: BLE001 - whatever else is broken, aiokafka tells it by its own name
        return batch


def _has_unreadable_name(batch: bytes) -> bool:
    """Raises what else aiokafka would raise of it."""
    if batch[VERSION_AT] != VERSION:
        return False
    found = DefaultRecordBatch(batch)
    if not found.validate_crc():
        return False
    try:
        for _ in found:
            pass
    except Exception as error:
        if not is_unreadable_name(error):
            raise
        return True
    return False


def _with_readable_names(batch: bytes) -> bytes:
    """The same records, not compressed any more."""
    (kind,) = struct.unpack_from(">h", batch, KIND_AT)
    (count,) = struct.unpack_from(">i", batch, COUNT_AT)
    unpacked = CODECS[kind & CODEC_MASK](batch[HEAD:]) if kind & CODEC_MASK else batch[HEAD:]
    found = bytearray(batch[:HEAD]) + unpacked
    at = HEAD
    for _ in range(count):
        at = _mend_names(found, at)
    struct.pack_into(">i", found, LENGTH_AT, len(found) - BEFORE_LENGTH_ENDS)
    struct.pack_into(">h", found, KIND_AT, kind & ~CODEC_MASK)
    struct.pack_into(">I", found, CHECKSUM_AT, calc_crc32c(bytes(found[KIND_AT:])))
    return bytes(found)


def _mend_names(found: bytearray, at: int) -> int:
    """In the record that begins there; returns where the next one does. Raises ValueError for what is no record."""
    length, at = decode_varint(found, at)
    end = at + length
    if not at < end <= len(found):
        raise ValueError("a record of no length")
    at += 1  # what kind of record it is: Kafka has one
    for _ in range(2):  # its time and its offset, both from the batch's
        _, at = decode_varint(found, at)
    for _ in range(2):  # key and value
        at = _behind(found, at)
    headers, at = decode_varint(found, at)
    for _ in range(headers):
        size, begins = decode_varint(found, at)
        if not 0 <= size <= end - begins:
            raise ValueError("a name of no length")
        name = found[begins : begins + size]
        if not _is_text(name):
            found[begins : begins + size] = bytes(one if one < 128 else UNREADABLE for one in name)
        at = _behind(found, begins + size)
    return int(end)


def _behind(found: bytearray, at: int) -> int:
    """Where what stands there with its length before it ends; a length below 0 is nothing at all."""
    size, at = decode_varint(found, at)
    return int(at + max(0, size))


def _is_text(name: bytearray) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
