#!/usr/bin/python3
"""L5Kit's arrays for bench_l5kit, and zarr-python's time to read the agents of a frame.

    l5kit.py make DIR    300 scenes of 100 frames, about 40 agents per frame
    l5kit.py time DIR    microseconds per frame, in random order

The chunks and the codec are those of L5Kit's ChunkedDataset.
"""
import sys
import time

import numpy as np
import zarr

SCENES, FRAMES = 300, 100
AGENTS = [('centroid', '<f8', (2,)), ('extent', '<f4', (3,)), ('yaw', '<f4'),
          ('velocity', '<f4', (2,)), ('track_id', '<u8'),
          ('label_probabilities', '<f4', (17,))]


def make(path):
    rng = np.random.default_rng(1)
    count = SCENES * FRAMES
    ends = np.cumsum(rng.integers(20, 61, count))
    frames = np.zeros(count, [('timestamp', '<i8'), ('agent_index_interval', '<i8', (2,)),
                              ('traffic_light_faces_index_interval', '<i8', (2,)),
                              ('ego_translation', '<f8', (3,)),
                              ('ego_rotation', '<f8', (3, 3))])
    frames['timestamp'] = np.arange(count) * 100000000
    frames['agent_index_interval'][:, 1] = ends
    frames['agent_index_interval'][1:, 0] = ends[:-1]
    scenes = np.zeros(SCENES, [('frame_index_interval', '<i8', (2,)), ('host', '<U16'),
                               ('start_time', '<i8'), ('end_time', '<i8')])
    scenes['frame_index_interval'][:, 0] = np.arange(SCENES) * FRAMES
    scenes['frame_index_interval'][:, 1] = np.arange(1, SCENES + 1) * FRAMES
    agents = np.zeros(ends[-1], AGENTS)
    agents['centroid'] = rng.random((len(agents), 2)) * 1000
    agents['track_id'] = rng.integers(0, 1000, len(agents))
    root = zarr.open_group(path, mode='w')
    for name, array, chunk in (('scenes', scenes, 10000), ('frames', frames, 10000),
                               ('agents', agents, 20000)):
        root.create_dataset(name, data=array, chunks=chunk)


def read(path):
    root = zarr.open_group(path, mode='r')
    frames, agents = root['frames'][:], root['agents']
    order = np.random.default_rng(2).integers(0, len(frames), 200)
    start, total = time.perf_counter(), 0
    for i in order:
        first, last = frames['agent_index_interval'][i]
        total += agents[first:last]['centroid'].sum()
    print('%8.2f us per frame' % ((time.perf_counter() - start) / len(order) * 1e6))


{'make': make, 'time': read}[sys.argv[1]](sys.argv[2])
