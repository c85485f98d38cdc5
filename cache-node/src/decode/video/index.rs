//! The index as it is kept: made once, archived, and checked before it is believed, since it comes from a disk or a peer.

use framecache::spec::STREAMS_MAX;
use rkyv::rancor::Error as Rancor;
use rkyv::{Archive, Deserialize, Serialize};

use super::codec::{EXTRADATA_BYTES_MAX, Parameters};
use super::extents::Run;
use super::scan::{Beside, KEPT_BYTES_MAX, LITERAL, PACKETS_MAX, RUNS_MAX};

/// How an index was made, from what is cheapest to what is surest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Archive, Serialize, Deserialize)]
pub enum Trust {
    /// From packets alone; of an MP4, from its header. Decoding a frame finds out where that was wrong, and says so.
    Predicted,
    /// From one decode of the whole stream; where decoding may start is from packets, and each decode finds out where that was wrong.
    Mapped,
    /// Each unit was decoded by itself, too, and gave the same.
    Proved,
}

/// Where times come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum PtsOrigin {
    /// The container's, of every frame.
    Container,
    /// The container names none, or not one for each frame: frames are evenly spaced at its rate, in the order in which they come.
    Synthesized,
}

/// A fraction; both parts are positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct Ratio {
    /// What is divided.
    pub numerator: u64,
    /// By what.
    pub denominator: u64,
}

impl Ratio {
    /// In lowest terms; nothing if a part is zero.
    pub(super) fn new(numerator: u64, denominator: u64) -> Option<Self> {
        let (mut a, mut b) = (numerator, denominator);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        (numerator > 0 && denominator > 0).then(|| Self { numerator: numerator / a, denominator: denominator / a })
    }

    /// Its value.
    pub fn value(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }
}

/// What a clip is.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Facts {
    /// The codec by FFmpeg's name: `h264`, `hevc`, `vp9` …
    pub codec: String,
    /// The decoder's own name; another than the codec's for AV1.
    pub decoder: String,
    /// The pixel format by FFmpeg's name: `yuv420p`, `yuv420p10le` …
    pub format: String,
    /// Width in pixels, of the first frame.
    pub width: u32,
    /// Height in pixels, of the first frame.
    pub height: u32,
    /// Degrees counter-clockwise by which pictures are to be turned, from -180 to 180. Frames come unturned.
    pub rotation: i32,
    /// Width of a pixel by its height, where the container says.
    pub sample_aspect: Option<Ratio>,
    /// Frames by the seconds from [`Facts::begin_seconds`] to [`Facts::end_seconds`].
    pub average_fps: Ratio,
    /// Frames a second as the container claims.
    pub header_fps: Option<Ratio>,
    /// Which of the container's streams it is, by its index there.
    pub stream: u32,
    /// The container's video streams, attached pictures among them.
    pub streams: Vec<u32>,
    /// When the first frame is shown.
    pub begin_seconds: f64,
    /// When the last one is no longer.
    pub end_seconds: f64,
    /// Frames, exactly.
    pub frames: u64,
    /// Frames as the container claims.
    pub header_frames: Option<u64>,
    /// Packets that the container says decoding can start at.
    pub keyframes: u64,
    /// ITU-T H.273's matrix coefficients; 2 where the stream does not say.
    pub matrix: i32,
    /// 0 where the stream does not say, 1 limited, 2 full.
    pub range: i32,
    /// H.273's colour primaries; 2 where the stream does not say.
    pub primaries: i32,
    /// H.273's transfer characteristics; 2 where the stream does not say.
    pub transfer: i32,
    /// Where chroma lies: 0 where the stream does not say, 1 left, 2 centre, 3 top left, 4 top, 5 bottom left, 6 bottom.
    pub chroma_location: i32,
    /// Where times come from.
    pub pts_origin: PtsOrigin,
    /// Whether something was wrong with the stream, as far as was looked; frames that are affected are errors unless asked for.
    pub damaged: bool,
    /// How this is known.
    pub trust: Trust,
}

/// The exact table of a clip's frames: what and when each is, and which bytes it takes.
#[derive(Clone, Debug)]
pub struct VideoIndex {
    pub(super) kept: Kept,
    /// Rows by tag.
    by_tag: Vec<u32>,
}

/// Longest archive of an index.
pub const INDEX_BYTES_MAX: usize = 64 << 20;

/// Moves with what is archived and what it means.
const FORM: u32 = 2;

/// What is archived.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub(super) struct Kept {
    form: u32,
    library: u32,
    pub(super) object_bytes: u64,
    pub(super) facts: Facts,
    /// What trust it was made for: that it could not be had is known, and is not found out again.
    pub(super) made_for: Trust,
    pub(super) parameters: Parameters,
    /// Whether packets were listed by the container, and their bytes never seen.
    pub(super) is_listed: bool,
    /// Seconds of a tick.
    pub(super) time_base: Ratio,
    /// Ticks that the last frame is shown.
    pub(super) last_ticks: u64,
    pub(super) packets: Vec<PacketRow>,
    pub(super) runs: Vec<Run>,
    pub(super) beside: Vec<Beside>,
    pub(super) rows: Vec<Row>,
    pub(super) sizes: Vec<(u32, u32)>,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(super) struct PacketRow {
    pub(super) bytes: u32,
    /// Its first run.
    pub(super) runs_at: u32,
    pub(super) flags: u8,
    /// Whether it is shown before the frame of a start that precedes it, without being a frame of this clip: nobody misses it.
    pub(super) is_surplus: bool,
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(super) struct Row {
    /// In ticks; rising.
    pub(super) pts: i64,
    /// The packet that it comes from.
    pub(super) tag: u32,
    /// How many frames of the same packet come out before it.
    pub(super) nth: u32,
    /// The packet at which decoding begins. Never falls from row to row.
    pub(super) start: u32,
    /// The last packet that decoding takes.
    pub(super) last: u32,
    /// Which of the clip's sizes.
    pub(super) size: u8,
    /// Of its planes; 0 in an index that is predicted.
    pub(super) hash: u64,
}

impl VideoIndex {
    pub(super) fn new(kept: Kept) -> Self {
        let mut by_tag: Vec<u32> = (0..kept.rows.len() as u32).collect();
        by_tag.sort_by_key(|&row| (kept.rows[row as usize].tag, kept.rows[row as usize].nth));
        Self { kept, by_tag }
    }

    /// Reads an archive; nothing if it is not whole, not of this library, or does not hold together: every bound and every reference
    /// is checked.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let within = bytes.len() <= INDEX_BYTES_MAX;
        let kept = within.then(|| rkyv::from_bytes::<Kept, Rancor>(bytes).ok())??;
        kept.holds_together().then(|| Self::new(kept))
    }

    /// The archive; nothing if it passes [`INDEX_BYTES_MAX`].
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let bytes = rkyv::to_bytes::<Rancor>(&self.kept).ok()?;
        (bytes.len() <= INDEX_BYTES_MAX).then(|| bytes.to_vec())
    }

    /// What the clip is.
    pub fn facts(&self) -> &Facts {
        &self.kept.facts
    }

    /// Whether it is the one to be had where that trust is wanted.
    pub fn answers(&self, wanted: Trust) -> bool {
        self.kept.made_for.max(self.facts().trust) >= wanted
    }

    /// Frames.
    pub fn len(&self) -> u64 {
        self.kept.rows.len() as u64
    }

    /// Never: a clip without a frame has no index.
    pub fn is_empty(&self) -> bool {
        self.kept.rows.is_empty()
    }

    /// Seconds of a tick.
    pub fn time_base(&self) -> Ratio {
        self.kept.time_base
    }

    /// When a frame is shown, in ticks. Rising; panics behind the last frame, as all by frame do.
    pub fn pts(&self, frame: u64) -> i64 {
        self.row(frame).pts
    }

    /// When a frame is shown, in seconds.
    pub fn seconds(&self, frame: u64) -> f64 {
        self.kept.seconds(self.pts(frame))
    }

    /// How long it is shown, in seconds: until the next, and the last one as long as the container says.
    pub fn duration(&self, frame: u64) -> f64 {
        let ticks = match self.kept.rows.get(frame as usize + 1) {
            Some(next) => next.pts.abs_diff(self.pts(frame)),
            None => self.kept.last_ticks,
        };
        ticks as f64 * self.kept.time_base.value()
    }

    /// The frame that is played at `seconds`: the last one shown by then. Nothing outside [`Facts::begin_seconds`] to
    /// [`Facts::end_seconds`], and at the end itself.
    pub fn played_at(&self, seconds: f64) -> Option<u64> {
        let facts = self.facts();
        let within = seconds >= facts.begin_seconds && seconds < facts.end_seconds;
        let shown = self.kept.rows.partition_point(|row| self.kept.seconds(row.pts) <= seconds);
        (within && shown > 0).then(|| shown as u64 - 1)
    }

    /// Width and height of a frame in pixels. In an index that is predicted all are said to have the first one's.
    pub fn size(&self, frame: u64) -> (u32, u32) {
        self.kept.sizes[usize::from(self.row(frame).size)]
    }

    pub(super) fn row(&self, frame: u64) -> &Row {
        &self.kept.rows[frame as usize]
    }

    /// The rows of a packet.
    pub(super) fn rows_of(&self, packet: u32) -> impl Iterator<Item = u64> + '_ {
        let first = self.by_tag.partition_point(|&row| self.kept.rows[row as usize].tag < packet);
        let own = move |row: &&u32| self.kept.rows[**row as usize].tag == packet;
        self.by_tag[first..].iter().take_while(own).map(|&row| row.into())
    }
}

impl Kept {
    pub(super) fn seconds(&self, pts: i64) -> f64 {
        // Exact where both parts and the product are below 2^53, as they are but for clips of years.
        (pts as f64 * self.time_base.numerator as f64) / self.time_base.denominator as f64
    }

    /// The runs of a packet.
    pub(super) fn runs_of(&self, packet: u32) -> &[Run] {
        let from = |packet: usize| self.packets.get(packet).map_or(self.runs.len(), |row| row.runs_at as usize);
        &self.runs[from(packet as usize)..from(packet as usize + 1)]
    }

    /// What is kept beside the runs of a packet.
    pub(super) fn beside(&self, packet: u32) -> impl Iterator<Item = &Beside> {
        let first = self.beside.partition_point(|beside| beside.packet < packet);
        self.beside[first..].iter().take_while(move |beside| beside.packet == packet)
    }

    pub(super) fn holds_together(&self) -> bool {
        let own = self.form == FORM && self.library == super::library();
        let counts = (1..=PACKETS_MAX).contains(&self.packets.len())
            && self.runs.len() <= RUNS_MAX
            && (1..=ROWS_MAX).contains(&self.rows.len())
            && (1..=SIZES_MAX).contains(&self.sizes.len());
        own && counts && self.facts_hold() && self.packets_hold() && self.rows_hold()
    }

    fn facts_hold(&self) -> bool {
        let facts = &self.facts;
        let ratios = [Some(facts.average_fps), Some(self.time_base), facts.header_fps, facts.sample_aspect];
        let names = [&facts.codec, &facts.decoder, &facts.format];
        let side = 1..=SIDE_MAX;
        facts.frames == self.rows.len() as u64
            && ratios.iter().flatten().all(|ratio| ratio.numerator > 0 && ratio.denominator > 0)
            && facts.streams.len() <= STREAMS_MAX as usize
            && facts.streams.iter().chain([&facts.stream]).all(|&stream| stream < STREAMS_MAX)
            && names.iter().all(|name| name.len() <= NAME_BYTES_MAX && name.chars().all(|c| c.is_ascii_graphic()))
            && facts.begin_seconds.is_finite()
            && facts.end_seconds.is_finite()
            && facts.begin_seconds <= facts.end_seconds
            && self.parameters.extradata.len() <= EXTRADATA_BYTES_MAX
            && self.sizes.iter().all(|(width, height)| side.contains(width) && side.contains(height))
            && (facts.width, facts.height) == self.sizes[usize::from(self.rows[0].size).min(self.sizes.len() - 1)]
    }

    fn packets_hold(&self) -> bool {
        let rising = self.packets.is_sorted_by_key(|packet| packet.runs_at)
            && self.packets[0].runs_at == 0
            && self.packets.iter().all(|packet| packet.runs_at as usize <= self.runs.len());
        let beside = self.beside.is_sorted_by_key(|beside| beside.packet)
            && self.beside.iter().all(|beside| (beside.packet as usize) < self.packets.len())
            && self.beside.iter().map(|beside| beside.bytes.len()).sum::<usize>() <= KEPT_BYTES_MAX;
        rising
            && beside
            && self.runs.iter().all(|run| run.pieces(self.object_bytes).is_some())
            && (0..self.packets.len()).all(|number| {
                let literal =
                    self.beside(number as u32).filter(|beside| beside.kind == LITERAL).map(|beside| beside.bytes.len() as u64);
                let bytes = self.runs_of(number as u32).iter().map(|run| run.bytes()).chain(literal).sum::<u64>();
                bytes == u64::from(self.packets[number].bytes)
            })
    }

    fn rows_hold(&self) -> bool {
        let row_holds = |row: &Row| {
            row.start <= row.tag
                && row.tag <= row.last
                && row.last - row.tag <= 1
                && (row.last as usize) < self.packets.len()
                && usize::from(row.size) < self.sizes.len()
                && row.nth <= FRAMES_OF_PACKET_MAX
        };
        self.rows.iter().all(row_holds)
            && self.rows.windows(2).all(|pair| pair[0].pts < pair[1].pts && pair[0].start <= pair[1].start)
            && self.rows.iter().all(|row| row.pts.unsigned_abs() < TICKS_MAX)
            && self.last_ticks < TICKS_MAX
    }

    /// A kept table from its parts; the format and library are this one's.
    #[expect(clippy::too_many_arguments, reason = "the parts of a table, each of its own kind")]
    pub(super) fn of(
        object_bytes: u64,
        facts: Facts,
        parameters: Parameters,
        is_listed: bool,
        time_base: Ratio,
        last_ticks: u64,
        packets: Vec<PacketRow>,
        runs: Vec<Run>,
        beside: Vec<Beside>,
        rows: Vec<Row>,
        sizes: Vec<(u32, u32)>,
    ) -> Self {
        let (form, library, made_for) = (FORM, super::library(), facts.trust);
        Self {
            form,
            library,
            object_bytes,
            facts,
            made_for,
            parameters,
            is_listed,
            time_base,
            last_ticks,
            packets,
            runs,
            beside,
            rows,
            sizes,
        }
    }
}

/// More frames than this are nobody's clip.
pub(super) const ROWS_MAX: usize = PACKETS_MAX;

/// Sizes of one clip.
pub(super) const SIZES_MAX: usize = 256;

/// A picture's side.
const SIDE_MAX: u32 = 1 << 16;

/// A superframe shows at most eight; packed pictures of old files are two.
pub(super) const FRAMES_OF_PACKET_MAX: u32 = 64;

/// Times beyond this are no clip's; sums of two stay far from the number's end.
pub(super) const TICKS_MAX: u64 = 1 << 60;

const NAME_BYTES_MAX: usize = 64;
