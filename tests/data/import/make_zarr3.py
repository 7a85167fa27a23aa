#!/usr/bin/env python3
"""Writes replay3.zarr, a replay buffer of three episodes in Zarr 3, with the writer of
tests/command/zarr3.py: shards, transposed chunks, byte orders, checksums, a missing chunk."""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent.parent
os.environ.setdefault('BAGS_GOLDEN', str(TESTS / 'data/golden'))
os.environ.setdefault('BAGS_REFERENCE', str(TESTS / 'lib/bagref.py'))
sys.path.insert(0, str(TESTS / 'command'))
import zarr3  # noqa: E402

BIG = {'name': 'bytes', 'configuration': {'endian': 'big'}}
TURN = {'name': 'transpose', 'configuration': {'order': [1, 0]}}
zarr3._save(HERE / 'replay3.zarr', zarr3._group(
    data__action=zarr3._array(
        [7, 3], [4, 4], lambda i: zarr3.ACTIONS[i[0]][i[1]], 'float32',
        [zarr3._sharding([2, 2], [TURN, BIG, {'name': 'zstd'}, zarr3.CRC])], -1.0),
    data__reward=zarr3._array(
        [7], [3], lambda i: None if 3 <= i[0] < 6 else zarr3.REWARDS[i[0]], 'int64',
        [zarr3.BYTES, zarr3.CRC], 5),
    meta__episode_ends=zarr3._array(
        [3], [3], lambda i: [3, 4, 7][i[0]], 'int64', [zarr3.BYTES])))
