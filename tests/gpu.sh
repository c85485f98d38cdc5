#!/bin/sh
# The GPU engine, tried on a machine that has an NVIDIA GPU. Two steps, since that machine may have neither network nor tools:
#
#   tests/gpu.sh pack FILE.tar.xz   here: the node, its trial, FFmpeg's libraries, clips and pictures, in one file
#   tests/gpu.sh run  FILE.tar.xz   there: a line for each promise, then frames a second beside the CPU; 8 minutes at most
#   tests/gpu.sh golden             here: makes the golden samples anew (their hashes are then printed by the failing test)
#
# `run` needs there: glibc as new as here, tar and xz, the NVIDIA driver with its video part (libcuda.so.1, libnvcuvid.so.1), and for
# pictures libnvjpeg.so.{12,11,13} on the loader's path or in LD_LIBRARY_PATH. All else is in the file. With FRAMECACHE_CORPUS set, that
# folder's clips are compared too. Exit status: 0 all passed, 1 something failed, 2 wrong usage, 3 something could not be tried.
set -eu

minutes=8
root=$(cd "$(dirname "$0")/.." && pwd)

main() {
    case "${1-} $#" in
    "pack 2") pack "$2" ;;
    "run 2") run "$2" ;;
    "golden 1") golden ;;
    *)
        sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
}

pack() {
    cd "$root"
    out=$(realpath "$1")
    set -- --release --locked --workspace --features framecache/cli --exclude framecache-python
    cargo build "$@" --bins
    trial=$(cargo test "$@" --test gpu --no-run 2>&1 | sed -n 's/.*(\(.*deps\/gpu-[0-9a-f]*\))$/\1/p')
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    mkdir -p "$folder/lib" "$folder/clips" "$folder/pictures"
    strip -o "$folder/framecache-node" "${CARGO_TARGET_DIR:-target}/release/framecache-node"
    strip -o "$folder/gpu" "$trial"
    cp "$0" "$folder/gpu.sh"
    # The C library is that machine's: the driver was made for it.
    ldd "$folder/framecache-node" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' |
        grep -Ev '/(ld-linux.*|lib(c|m|dl|rt|pthread|resolv))\.so' | xargs -I{} cp -L {} "$folder/lib/"
    ldd --version | sed -n '1s/.* //p' >"$folder/glibc"
    clips "$folder/clips"
    cp cache-node/tests/golden/jpeg/baseline*.jpg "$folder/pictures/"
    ffmpeg -nostdin -v error -f lavfi -i mandelbrot=size=4000x3000:rate=1 -frames:v 1 -pix_fmt yuvj420p -q:v 3 "$folder/pictures/large.jpg"
    tar -C "$folder" -c . | xz -T0 -6 >"$out"
    printf 'gpu.sh: %s, %s bytes\n' "$out" "$(wc -c <"$out")"
}

# Sources of halved chroma have even sides alone; in colours of full size any side is had.
scaled() {
    printf 'format=gbrp,scale=%s:%s' "${1%x*}" "${1#*x}"
}

# Two seconds of each codec and size, with some noise, at the rates that such clips have.
clips() {
    while read -r codec size rate options; do
        extension=mp4
        [ "$codec" != vp8 ] || extension=mkv
        # shellcheck disable=SC2086  # options are a list of words
        ffmpeg -nostdin -v error -f lavfi -i "testsrc2=size=$size:rate=24:duration=2,$(scaled "$size"),noise=alls=4:allf=t" -b:v "$rate" -g 24 -pix_fmt yuv420p \
            $options "$1/${codec}_$size.$extension"
    done <<'LIST'
h264 640x360 1M -c:v libx264 -preset fast
h264 1280x720 2500k -c:v libx264 -preset fast
h264 1920x1080 5M -c:v libx264 -preset fast
h264 3840x2160 16M -c:v libx264 -preset veryfast
hevc 640x360 700k -c:v libx265 -preset fast -x265-params log-level=error
hevc 1920x1080 3500k -c:v libx265 -preset fast -x265-params log-level=error
hevc 3840x2160 12M -c:v libx265 -preset ultrafast -x265-params log-level=error
hevc10 1920x1080 3500k -c:v libx265 -preset fast -pix_fmt yuv420p10le -x265-params log-level=error
vp8 640x360 1M -c:v libvpx -deadline realtime -cpu-used 8
vp9 640x360 700k -c:v libvpx-vp9 -deadline realtime -cpu-used 8
vp9 1919x1079 3500k -c:v libvpx-vp9 -deadline realtime -cpu-used 8
av1 1920x1080 3M -c:v libsvtav1 -preset 10
mpeg2 1920x1080 12M -c:v mpeg2video -flags +ildct+ilme -bf 2
mpeg4 1280x720 4M -c:v mpeg4 -bf 2
LIST
}

run() {
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    xz -dc "$1" | tar -C "$folder" -x
    have=$(ldd --version 2>/dev/null | sed -n '1s/.* //p') || have=
    need=$(cat "$folder/glibc")
    if [ "$(printf '%s\n%s\n' "${have:-0}" "$need" | sort -V | head -n 1)" != "$need" ]; then
        printf 'cannot  all: glibc is %s here, %s is needed\n' "${have:-unknown}" "$need"
        exit 3
    fi
    nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader 2>/dev/null | sed 's/^/device  /' ||
        printf 'device  nvidia-smi is not here\n'
    LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export LD_LIBRARY_PATH
    printf '[decode]\nengines = ["gpu"]\n[node]\nmemory_limit = "4GiB"\n' >"$folder/node.toml"
    status=0
    "$folder/framecache-node" serve --check-config --config "$folder/node.toml" 2>&1 | sed 's/^/config  /'
    FRAMECACHE_GPU_TRIAL="$folder" FRAMECACHE_NODE="$folder/framecache-node" timeout $((minutes * 60)) "$folder/gpu" || status=$?
    nvidia-smi --query-gpu=memory.used --format=csv,noheader 2>/dev/null | sed 's/^/device  memory afterwards: /' || :
    case $status in
    124)
        printf 'FAIL    time: not done after %s minutes\n' "$minutes"
        exit 1
        ;;
    *) exit "$status" ;;
    esac
}

# A few frames each, so small that they are part of the program, and so large that a device takes them.
golden() {
    cd "$root/cache-node/src/decode/gpu/golden"
    while read -r file size options; do
        # shellcheck disable=SC2086  # options are a list of words
        ffmpeg -nostdin -v error -y -f lavfi -i "testsrc2=size=$size:rate=25:duration=0.32,$(scaled "$size")" -pix_fmt yuv420p -map_metadata -1 -fflags +bitexact \
            -flags:v +bitexact $options "$file"
        printf '%s %s bytes\n' "$file" "$(wc -c <"$file")"
    done <<'LIST'
h264.mp4 178x146 -c:v libx264 -crf 32 -bf 2 -refs 3
h264_interlaced.mp4 176x144 -c:v libx264 -crf 32 -bf 1 -flags +ilme+ildct -x264-params tff=1
hevc.mp4 178x146 -c:v libx265 -crf 34 -x265-params log-level=error:bframes=2
hevc_10bit.mp4 176x144 -c:v libx265 -crf 34 -pix_fmt yuv420p10le -x265-params log-level=error
vp8.mkv 176x144 -c:v libvpx -b:v 150k
vp8_odd.mkv 175x143 -c:v libvpx -b:v 150k
vp9.mp4 176x144 -c:v libvpx-vp9 -b:v 150k
vp9_odd.mp4 175x143 -c:v libvpx-vp9 -b:v 150k
av1.mp4 178x146 -c:v libaom-av1 -cpu-used 8 -crf 45 -b:v 0
av1_odd.mp4 175x143 -c:v libaom-av1 -cpu-used 8 -crf 45 -b:v 0
mpeg2.mp4 178x146 -c:v mpeg2video -q:v 12 -bf 2
mpeg4.mp4 178x146 -c:v mpeg4 -q:v 12 -bf 2
LIST
}

main "$@"
