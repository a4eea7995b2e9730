"""Headers of records, as TFRecord files have them, whose checksum is right and whose length may be wrong."""

import struct


def header(length: int) -> bytes:
    """Returns the length and its checksum (CRC-32C, masked): TensorFlow makes room for what it says."""
    data = struct.pack('<Q', length)
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return data + struct.pack('<I', ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)
