"""A plain reader of what ``sinks.cache.listpack`` makes."""

from __future__ import annotations


def unpacked(payload: bytes) -> dict[bytes, bytes]:
    """A hash as RESTORE takes it."""
    content, version, checksum = payload[:-10], payload[-10:-8], payload[-8:]
    assert (content[0], version) == (16, b"\x0a\x00")
    assert checksum == _crc64(payload[:-8]).to_bytes(8, "little")
    assert content[1] == 0x80
    assert int.from_bytes(content[2:6], "big") == len(content) - 6
    packed = content[6:]
    assert (int.from_bytes(packed[:4], "little"), packed[-1]) == (len(packed), 255)
    items, at = [], 6
    while at < len(packed) - 1:
        size, item = _entry(packed[at:])
        assert packed[at + size] == size
        items.append(item)
        at += size + 1
    assert int.from_bytes(packed[4:6], "little") == len(items)
    return dict(zip(items[::2], items[1::2], strict=True))


def _entry(data: bytes) -> tuple[int, bytes]:
    mark = data[0]
    if mark < 0x80:
        return 1, b"%d" % mark
    if mark < 0xC0:
        return 1 + (mark & 63), data[1 : 1 + (mark & 63)]
    if mark < 0xE0:
        number = (mark & 31) << 8 | data[1]
        return 2, b"%d" % (number - 8192 if number >= 4096 else number)
    size = {0xF1: 2, 0xF2: 3, 0xF3: 4, 0xF4: 8}[mark]
    return 1 + size, b"%d" % int.from_bytes(data[1 : 1 + size], "little", signed=True)


def _crc64(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc
