"""The clips that other tests are about are what their names say, by PyAV's reading from the first frame to the last."""

import clips
import crafted
import painted
import pytest
from conftest import SEED

CLIPS_MIN = 56

B_FRAMES = [
    "bframes.mp4",
    "opengop.mp4",
    "h264.avi",
    "vfr.mp4",
    "hevc.mp4",
    "hevc-opengop.mkv",
    "mpeg2.ts",
    "mpeg4.avi",
    "mpeg4.mp4",
]
# IDR pictures are NAL unit type 5 in H.264; CRA is 21 and RASL 8 and 9 in HEVC.
IDR, CRA, RASL = 5, 21, {8, 9}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    found = {clip.name: (clip, folder / clip.name, clips.seen(folder / clip.name)) for clip in clips.make(folder)}
    print(f"seed {SEED}; {len(found)} clips of {sum(path.stat().st_size for _, path, _ in found.values())} bytes")
    assert len(found) >= CLIPS_MIN
    return found


def test_every_frame_says_its_number(made):
    """In presentation order, each once, readable after lossy coding, and no frame like another; RGB says it too."""
    for clip, path, seen in made.values():
        if clip.refused:
            continue
        whole = [number for number in seen.numbers if number is not None]
        if clip.damaged:
            assert len(whole) >= len(clip.numbers) // 2 and set(whole) <= set(clip.numbers), clip.name
            continue
        assert seen.numbers == clip.numbers and not seen.error, (clip.name, seen.numbers)
        assert len(set(seen.shas)) == len(clip.numbers) and seen.corrupt == 0, clip.name
        first = next(clips.exact.walk(path))
        assert painted.number_of(first.rgb()) == clip.numbers[0], clip.name


def test_a_frame_that_is_hidden_is_not_read():
    """A number that cannot be told is none, not another."""
    gray = painted.numpy.full((96, 160), 128)
    assert painted.number_of(gray) is None
    for number in (0, 1, 119, 170, 255):
        luma = painted.exact.picture(painted.paint(number)).planes[0]
        assert painted.number_of(luma) == number != painted.number_of(luma[::-1])


def test_times_are_those_meant(made):
    """Where they are known beforehand; where a file lacks them, or has one for several frames, it is seen to."""
    for clip, _, seen in made.values():
        if clip.refused or clip.damaged:
            continue
        if clip.seconds is not None:
            assert seen.seconds == pytest.approx(clip.seconds, abs=2e-3), clip.name
        if clip.timed:
            assert None not in seen.seconds and list(seen.seconds) == sorted(set(seen.seconds)), clip.name
    assert made["nopts.h264"][2].untimed == 60 and made["nopts.hevc"][2].untimed == 64
    assert 0 < made["untimed.mkv"][2].untimed < 48
    assert len(set(made["equalpts.mkv"][2].seconds)) == 16
    assert len(set(made["restart.ts"][2].seconds)) == 30
    assert made["wrap.ts"][2].seconds[0] < 0 < made["wrap.ts"][2].seconds[-1]
    steps = [
        round(later - earlier, 3)
        for earlier, later in zip(made["vfr.mp4"][0].seconds, made["vfr.mp4"][0].seconds[1:], strict=False)
    ]
    assert len(set(steps)) >= 4 and max(made["gap.mkv"][0].seconds) > 4


def test_kinds_are_those_meant(made):
    """B-frames, open groups of pictures, hidden frames, sample formats, headers, streams, rotation."""
    seen = {name: found for name, (_, _, found) in made.items()}
    assert all(seen[name].b_frames >= 10 for name in B_FRAMES) and seen["plain.mp4"].b_frames == 0
    for name in ("opengop.mp4", "opengop.mkv", "fragmented.mp4"):
        path = made[name][1]
        assert leading(path) >= 5 and idrs(path) == 1 and IDR in seen[name].nals, name
    assert idrs(made["bframes.mp4"][1]) == 4 and leading(made["bframes.mp4"][1]) == 0
    assert CRA in seen["hevc-opengop.mkv"].nals and seen["hevc-opengop.mkv"].nals & RASL and leading(made["hevc-opengop.mkv"][1])
    assert CRA in seen["hevc-cut.mkv"].nals and seen["hevc-cut.mkv"].packets > len(seen["hevc-cut.mkv"].numbers)
    assert seen["editlist.mp4"].discarded == 7 and seen["editlist.mp4"].counted == 60
    assert seen["vp8-hidden.webm"].packets == 60
    assert idrs(made["refresh.mp4"][1]) == 1
    for name, form in {
        "h264-yuv422p.mp4": "yuv422p",
        "h264-yuv444p.mp4": "yuv444p",
        "h264-yuv420p10le.mp4": "yuv420p10le",
        "h264-yuv422p10le.mp4": "yuv422p10le",
        "hevc-10.mp4": "yuv420p10le",
        "mjpeg.avi": "yuvj422p",
    }.items():
        assert seen[name].forms == (form,)
    assert [seen[name].rotation for name in ("plain.mp4", "rotated.mp4")] == [0, -90]
    assert [seen[name].counted for name in ("more.avi", "fewer.avi", "fragmented.mp4")] == [400, 9, 0]
    assert all(seen[name].packets == 2 * len(seen[name].numbers) for name in ("fields.h264", "fields.mkv", "fields.ts"))
    assert seen["packed.avi"].b_frames >= 20 and empty(made["packed.avi"][1]) == seen["packed.avi"].b_frames
    assert seen["sizes.ts"].sizes == 2
    assert seen["sound.m4a"].error == "no video stream"
    assert max(path.stat().st_size for _, path, _ in made.values()) < 1 << 20


def test_headers_stand_where_they_are_said_to(made):
    orders = {}
    for name in ("bframes.mp4", "faststart.mp4"):
        data = made[name][1].read_bytes()
        orders[name] = data.index(b"moov") < data.index(b"mdat")
    assert orders == {"bframes.mp4": False, "faststart.mp4": True}
    assert made["fragmented.mp4"][1].read_bytes().count(b"moof") >= 3


def leading(path) -> int:
    """Frames that are coded behind a key frame, and shown before it."""
    count, key = 0, None
    for packet in painted.packets(path):
        key = packet.pts if packet.key else key
        count += packet.pts < key
    return count


def empty(path) -> int:
    """Packets of an MPEG-4 file whose picture stands in another."""
    return sum(packet.data == crafted.NOTHING for packet in painted.packets(path))


def idrs(path) -> int:
    """Packets that hold an IDR picture; the file's NAL units have a length of four bytes each."""
    count = 0
    for packet in painted.packets(path):
        place = 0
        while place < len(packet.data):
            count += packet.data[place + 4] & 31 == IDR
            place += 4 + int.from_bytes(packet.data[place : place + 4], "big")
    return count
