"""Spark's ``xxhash64`` in numpy, for columns of longs and texts: XXH64 with seed 42, chained
column by column.

What a ledger, a Spark job and a process without Spark compute of one row is the same number.
Source: XXH64 by Y. Collet, as in Spark's ``XXH64`` (``hashLong``, ``hashUnsafeBytes``); a null
leaves the hash as it was.
"""

import numpy as np
import numpy.typing as npt

from ledger.deltas.rows import Longs

Hashes = npt.NDArray[np.uint64]

SEED = np.uint64(42)
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_LONG = np.uint64(int(_PRIME_5) + 8)  # with the bytes of a long
BLOCK = 16_384  # values that are hashed at a time: what they need stays in the cache of a core
_STRIPE = 32  # bytes that XXH64 mixes at a time, in four lanes; what is left by eight, four, one


def hash_longs(values: Longs, seeds: Hashes | np.uint64 = SEED) -> Hashes:
    """Return the hash of each value, chained to ``seeds``, the hashes of the columns before."""
    bits, result = values.view(np.uint64), np.empty(len(values), np.uint64)
    mixed, turned = np.empty((2, min(len(values), BLOCK)), np.uint64)
    for start in range(0, len(values), BLOCK):
        block = slice(start, start + BLOCK)
        hashes = result[block]
        before = seeds[block] if isinstance(seeds, np.ndarray) else seeds
        _hash_block(bits[block], before, hashes, mixed[: len(hashes)], turned[: len(hashes)])
    return result


def _hash_block(
    values: Hashes, seeds: Hashes | np.uint64, hashes: Hashes, mixed: Hashes, turned: Hashes
) -> None:
    """Compute ``hash_longs`` into ``hashes``. ``mixed`` and ``turned`` are scratch arrays of the
    same length.
    """
    np.multiply(values, _PRIME_2, out=mixed)
    _rotate(mixed, 31, turned)
    np.multiply(mixed, _PRIME_1, out=mixed)
    np.add(seeds, _LONG, out=hashes)
    np.bitwise_xor(hashes, mixed, out=hashes)
    _rotate(hashes, 27, turned)
    np.multiply(hashes, _PRIME_1, out=hashes)
    np.add(hashes, _PRIME_4, out=hashes)
    _avalanche(hashes, turned)


def hash_text(text: str, seeds: Hashes | np.uint64 = SEED) -> Hashes:
    """Return the hash of one text, chained to each of ``seeds``: a scalar for a scalar seed."""
    data = text.encode()
    with np.errstate(over="ignore"):
        hashes = np.atleast_1d(np.asarray(seeds, np.uint64)).copy()
        if len(data) >= _STRIPE:
            hashes = _lanes(data, hashes)
            rest = data[len(data) // _STRIPE * _STRIPE :]
        else:
            hashes += _PRIME_5
            rest = data
        hashes += np.uint64(len(data))
        hashes = _finish(rest, hashes)
        _avalanche(hashes, np.empty_like(hashes))
        return hashes


def _finish(rest: bytes, hashes: Hashes) -> Hashes:
    """Mix the last, fewer than 32 bytes into ``hashes``: first by eight bytes, then by four, then
    one by one.
    """
    place = 0
    while len(rest) - place >= 8:
        hashes ^= _round(np.frombuffer(rest, np.uint64, 1, place))
        hashes = _rotated(hashes, 27) * _PRIME_1 + _PRIME_4
        place += 8
    if len(rest) - place >= 4:
        hashes ^= np.frombuffer(rest, np.uint32, 1, place).astype(np.uint64) * _PRIME_1
        hashes = _rotated(hashes, 23) * _PRIME_2 + _PRIME_3
        place += 4
    for byte in rest[place:]:
        hashes ^= np.uint64(byte) * _PRIME_5
        hashes = _rotated(hashes, 11) * _PRIME_1
    return hashes


def _lanes(data: bytes, seeds: Hashes) -> Hashes:
    """Mix in all complete stripes of 32 bytes, eight bytes for each of four lanes."""
    lanes = [seeds + _PRIME_1 + _PRIME_2, seeds + _PRIME_2, seeds.copy(), seeds - _PRIME_1]
    words = np.frombuffer(data, np.uint64, len(data) // 32 * 4).reshape(-1, 4)
    for stripe in words:
        for number, word in enumerate(stripe):
            lanes[number] = _rotated(lanes[number] + word * _PRIME_2, 31) * _PRIME_1
    turned = [_rotated(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)]
    mixed = turned[0] + turned[1] + turned[2] + turned[3]
    for lane in lanes:
        mixed ^= _round(lane)
        mixed = mixed * _PRIME_1 + _PRIME_4
    return mixed


def _round(values: Hashes) -> Hashes:
    return _rotated(values * _PRIME_2, 31) * _PRIME_1


def _rotated(values: Hashes, bits: int) -> Hashes:
    turned = np.array(values)
    _rotate(turned, bits, np.empty_like(turned))
    return turned


def _rotate(values: Hashes, bits: int, rest: Hashes) -> None:
    """Rotate the values left in place. ``rest`` is a scratch array of the same length."""
    np.right_shift(values, np.uint64(64 - bits), out=rest)
    np.left_shift(values, np.uint64(bits), out=values)
    np.bitwise_or(values, rest, out=values)


def _avalanche(hashes: Hashes, shifted: Hashes) -> None:
    """Apply the final mix of XXH64 in place. ``shifted`` is a scratch array of the same length."""
    for bits, prime in ((33, _PRIME_2), (29, _PRIME_3), (32, None)):
        np.right_shift(hashes, np.uint64(bits), out=shifted)
        np.bitwise_xor(hashes, shifted, out=hashes)
        if prime is not None:
            np.multiply(hashes, prime, out=hashes)
