#!/bin/sh
# How the clips were made, by ffmpeg 5.1. They are small, and each has something
# that readers get wrong. Run it in an empty directory.
set -e
make() { ffmpeg -v error -y "$@"; }
S="-f lavfi -i testsrc2=size=64x48:rate=25"
O="-f lavfi -i testsrc=size=65x49:rate=24000/1001 -frames:v 12 -pix_fmt yuv420p"
V="setpts='if(lt(N,10),N,if(lt(N,20),10+(N-10)*3.3,50+N))/25/TB'"
X=log-level=none
make $S -frames:v 45 -c:v libx264 -bf 3 -g 12 -b:v 60k \
    -x264-params open-gop=1:b-pyramid=normal h264_open_gop.mp4
make $S -frames:v 45 -c:v libx265 -b:v 60k \
    -x265-params $X:keyint=12:bframes=4:open-gop=1 hevc_open_gop.mp4
make $S -frames:v 40 -c:v mpeg4 -bf 2 -g 9 -b:v 80k mpeg4_b_frames.mp4
make $S -frames:v 40 -vf "$V" -vsync vfr -c:v libx264 -g 15 -b:v 50k \
    h264_variable_rate.mp4
make $S -frames:v 40 -vf "$V" -vsync vfr -c:v libvpx-vp9 -g 15 -b:v 50k \
    vp9_variable_rate.webm
make $S -frames:v 60 -c:v libx264 -bf 2 -g 20 -b:v 50k whole.mp4
make -ss 0.55 -i whole.mp4 -c copy h264_edit_list.mp4
make -i whole.mp4 -c copy h264.mkv
make -i whole.mp4 -c copy -movflags frag_keyframe+empty_moov h264_fragments.mp4
cut() { make -i "$1" -bsf:v "noise=drop=lt(n\,$2)" -c copy "$3"; }
cut whole.mp4 5 h264_no_key_at_start.mp4
cut hevc_open_gop.mp4 5 hevc_no_key_at_start.mp4
cut mpeg4_b_frames.mp4 3 mpeg4_no_key_at_start.mp4
rm whole.mp4
for f in h264 hevc; do
    make -ss 1 -i ${f}_open_gop.mp4 -c copy ${f}_cut_open_gop.mp4
    make -ss 1 -i ${f}_open_gop.mp4 -c copy ${f}_cut_open_gop.mkv
done
A="-auto-alt-ref 1 -b:v 60k"
make $S -frames:v 40 -c:v libvpx $A -lag-in-frames 16 vp8_hidden.webm
make $S -frames:v 40 -c:v libvpx-vp9 $A -lag-in-frames 25 vp9_hidden.webm
make $S -frames:v 40 -c:v libvpx-vp9 $A -lag-in-frames 25 vp9_hidden.mp4
make $S -frames:v 20 -c:v libaom-av1 -cpu-used 8 -b:v 60k av1.mp4
make $S -frames:v 20 -pix_fmt yuv420p10le -c:v libx265 -x265-params $X \
    -b:v 60k hevc_10_bit.mp4
make $S -frames:v 20 -pix_fmt yuv422p -c:v libx264 -b:v 60k h264_422.mp4
make $S -frames:v 20 -vf scale=out_range=full,format=yuvj420p -c:v libx264 \
    -b:v 60k h264_full_range.mp4
make $S -frames:v 20 -colorspace bt709 -color_primaries bt709 \
    -color_trc bt709 -c:v libx264 -b:v 60k h264_bt709.mp4
make $O -c:v mpeg4 mpeg4_odd.mp4
make $O -c:v libvpx-vp9 vp9_odd.webm
