#!/usr/bin/env python3
"""Writes two sources with the writers of tests/command. replay3.zarr: a replay buffer of three
episodes in Zarr 3, with shards, transposed chunks, byte orders, checksums and a missing chunk;
rlds: two episodes of TensorFlow Datasets, with inner sequences and an encoded tensor."""
import os
import pathlib
import struct
import sys
import zlib

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent.parent
os.environ.setdefault('BAGS_GOLDEN', str(TESTS / 'data/golden'))
os.environ.setdefault('BAGS_REFERENCE', str(TESTS / 'lib/bagref.py'))
sys.path.insert(0, str(TESTS / 'command'))
import rlds  # noqa: E402
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

FEATURES = rlds._dict(name=rlds.TEXT, steps=rlds._steps(
    x=rlds._tensor('float32', 2), t=rlds.TEXT, z=rlds._tensor('int16', -1, encoding='zlib'),
    n=rlds._steps('sequence_feature.Sequence', feature=rlds._tensor('uint8'))))
rlds._save(HERE / 'rlds', FEATURES, [[{
    'name': [b'one'], 'steps/x': [1.0, 2.0, 3.0, 4.0], 'steps/t': [b'go', b'stop'],
    'steps/z': [zlib.compress(struct.pack('<2h', 5, -6)), zlib.compress(b'')],
    'steps/n/ragged_flat_values': [7, 8, 9], 'steps/n/ragged_row_lengths_0': [3, 0]}, {
    'name': [b'two'], 'steps/x': [5.0, 6.0], 'steps/t': [b'wait'],
    'steps/z': [zlib.compress(struct.pack('<h', 1))],
    'steps/n/ragged_flat_values': [1], 'steps/n/ragged_row_lengths_0': [1]}]])
