#!/usr/bin/python3
"""Made NAME.pyav.rgb, a frame of NAME as PyAV's to_ndarray(format='rgb24') returns
it: height x width x 3 bytes. PyAV 10, FFmpeg 5.1 (Debian: python3-av)."""
import pathlib

import av

HERE = pathlib.Path(__file__).parent
FRAME = 5

for name in ('av1.mp4', 'h264_422.mp4', 'h264_bt709.mp4', 'h264_full_range.mp4',
             'hevc_10_bit.mp4', 'mpeg4_odd.mp4', 'vp9_odd.webm'):
    with av.open(str(HERE / name)) as container:
        for i, frame in enumerate(container.decode(video=0)):
            if i == FRAME:
                pixels = frame.to_ndarray(format='rgb24')
    (HERE / f'{name}.pyav.rgb').write_bytes(pixels.tobytes())
