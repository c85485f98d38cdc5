//! The promises of the whole room: Pillow's bytes, the same from every kernel, no byte read or written outside.

use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

use super::*;

const FILTERS: [Filter; 6] = [Filter::Nearest, Filter::Box, Filter::Bilinear, Filter::Hamming, Filter::Bicubic, Filter::Lanczos];

/// Every kernel gives Pillow 13.0.0's bytes, recorded in `golden.txt`.
#[test]
fn equals_pillow() {
    let mut cases = 0;
    for line in include_str!("golden.txt").lines().filter(|line| !line.starts_with('#')) {
        let (case, hash) = Case::parse(line);
        for isa in Isa::available() {
            assert_eq!(xxh3_64(&case.resized(isa)), hash, "{isa:?} {line}");
        }
        cases += 1;
    }
    assert_eq!(cases, 180);
}

/// Vector kernels give the bytes of the scalar ones, and a window those of the full result, cut. One thread's resizer serves all
/// cases in turn, so scratch memory is never clean.
#[test]
fn kernels_agree_and_windows_are_cuts() {
    let mut random = Random::new("kernels_agree_and_windows_are_cuts", 1);
    for number in 0..3_000 {
        let case = Case::random(&mut random);
        let expected = case.cut(&case.full().resized(Isa::Scalar));
        for isa in Isa::available() {
            assert!(case.resized(isa) == expected, "case {number}, {isa:?}: {case:?}");
        }
    }
}

/// No kernel reads behind the source or writes behind the output: both end at a page that faults.
#[cfg(unix)]
#[test]
fn stays_within_its_slices() {
    let mut random = Random::new("stays_within_its_slices", 2);
    let (mut source_memory, mut out_memory) = (GuardedMemory::new(1 << 20), GuardedMemory::new(1 << 20));
    for number in 0..3_000 {
        let case = Case::random(&mut random);
        let pixels = source_memory.last(case.pixels.len());
        pixels.copy_from_slice(&case.pixels);
        for isa in Isa::available() {
            let out = out_memory.last(case.out_bytes());
            out.fill(0xA5);
            resize_with(isa, &Source { pixels, ..case.source() }, &case.plan, out);
            assert!(out == case.resized(Isa::Scalar), "case {number}, {isa:?}: {case:?}");
        }
    }
}

/// A budget taken before the call covers what the call allocates, and what stays held afterwards is bounded.
#[test]
fn scratch_stays_within_its_bounds() {
    let mut random = Random::new("scratch_stays_within_its_bounds", 3);
    for number in 0..1_000 {
        let case = Case::random(&mut random);
        let Source { width, height, channels, .. } = case.source();
        let bound = resize_scratch_bytes(width, height, channels, &case.plan);
        for isa in Isa::available() {
            let mut resizer = Resizer::default();
            resizer.resize_with(isa, &case.source(), &case.plan, &mut vec![0; case.out_bytes()]);
            assert!(resizer.bytes() <= bound, "case {number}, {isa:?}: {} bytes over {bound}: {case:?}", resizer.bytes());
        }
    }
    let wide = Case::whole(1, (3_000_000, 4, 3), (2_000_000, 3), Filter::Lanczos);
    let mut resizer = Resizer::default();
    resizer.resize(&wide.source(), &wide.plan, &mut vec![0; wide.out_bytes()]);
    assert!(resizer.bytes() <= RESIZER_BYTES_MAX, "{} bytes held", resizer.bytes());
}

/// A crop is the window's rows, and a resize to the same size is one.
#[test]
fn crop_copies_rows() {
    let mut case = Case::whole(6, (7, 5, 3), (7, 5), Filter::Bicubic);
    case.plan.window = Window { x: 2, y: 1, width: 3, height: 4 };
    let mut out = vec![0; case.out_bytes()];
    crop(&case.source(), case.plan.window, &mut out);
    assert_eq!(out, case.cut(&case.pixels));
    assert_eq!(out, case.resized(Isa::best()));
}

/// A plan that was not checked stops at once, before any kernel sees it.
#[test]
#[should_panic(expected = "resize of an unchecked plan")]
fn unchecked_plan_panics() {
    let mut case = Case::whole(0, (2, 2, 1), (2, 2), Filter::Bilinear);
    case.plan.window.x = 1;
    case.resized(Isa::best());
}

/// A picture and what to make of it.
#[derive(Debug)]
struct Case {
    seed: u64,
    pixels: Pixels,
    sides: (usize, usize, usize),
    plan: Plan,
}

/// Not printed: the seed makes them again.
#[derive(Clone)]
struct Pixels(Vec<u8>);

impl std::fmt::Debug for Pixels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl std::ops::Deref for Pixels {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Case {
    fn whole(seed: u64, sides: (usize, usize, usize), size: (usize, usize), filter: Filter) -> Self {
        let pixels = Pixels(picture(seed, sides.0 * sides.1 * sides.2));
        let window = Window { x: 0, y: 0, width: size.0, height: size.1 };
        Self { seed, pixels, sides, plan: Plan { size, region: None, window, filter } }
    }

    /// Sides up to 400, small ones as often as large ones; a whole or fractional region and a window in about half the cases.
    fn random(random: &mut Random) -> Self {
        let side_max = [8, 60, 400][random.below(3)];
        let mut side = || 1 + random.below(side_max);
        let ((width, height), size) = ((side(), side()), (side(), side()));
        let channels = [1, 3, 3, 4][random.below(4)];
        let seed = random.next();
        let mut case = Self::whole(seed, (width, height, channels), size, FILTERS[random.below(FILTERS.len())]);
        if random.below(2) == 0 {
            let whole = random.below(2) == 0;
            let ((x0, x1), (y0, y1)) = (random.part(width, whole), random.part(height, whole));
            case.plan.region = Some([x0, y0, x1, y1]);
        }
        if random.below(2) == 0 {
            let (width, height) = (1 + random.below(size.0), 1 + random.below(size.1));
            let (x, y) = (random.below(size.0 - width + 1), random.below(size.1 - height + 1));
            case.plan.window = Window { x, y, width, height };
        }
        case
    }

    /// A line of `golden.txt`, whose head says what stands in it.
    fn parse(line: &str) -> (Self, u64) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [seed, sides, size, region, window, filter, hash] = fields[..] else { panic!("{line}") };
        let (sides, size, window) = (numbers::<usize>(sides, 'x'), numbers::<usize>(size, 'x'), numbers::<usize>(window, ','));
        let filter =
            FILTERS.into_iter().find(|known| format!("{known:?}").eq_ignore_ascii_case(filter)).expect("a filter's name");
        let seed = seed.parse().expect("a seed");
        let mut case = Self::whole(seed, (sides[0], sides[1], sides[2]), (size[0], size[1]), filter);
        case.plan.region = (region != "-").then(|| numbers::<f32>(region, ',').try_into().expect("four numbers"));
        case.plan.window = Window { x: window[0], y: window[1], width: window[2], height: window[3] };
        (case, u64::from_str_radix(hash, 16).expect("a hash"))
    }

    fn source(&self) -> Source<'_> {
        let (width, height, channels) = self.sides;
        Source { pixels: &self.pixels, width, height, channels }
    }

    fn out_bytes(&self) -> usize {
        self.plan.window.width * self.plan.window.height * self.sides.2
    }

    fn resized(&self, isa: Isa) -> Vec<u8> {
        let mut out = vec![0xA5; self.out_bytes()];
        resize_with(isa, &self.source(), &self.plan, &mut out);
        out
    }

    /// The same with all of the result as its window.
    fn full(&self) -> Self {
        let (width, height) = self.plan.size;
        let plan = Plan { window: Window { x: 0, y: 0, width, height }, ..self.plan };
        Self { seed: self.seed, pixels: self.pixels.clone(), sides: self.sides, plan }
    }

    /// The window's bytes out of the full result's.
    fn cut(&self, full: &[u8]) -> Vec<u8> {
        let (Window { x, y, width, height }, channels) = (self.plan.window, self.sides.2);
        let row = |row: usize| &full[(row * self.plan.size.0 + x) * channels..][..width * channels];
        (y..y + height).flat_map(row).copied().collect()
    }
}

fn numbers<T: FromStr>(text: &str, separator: char) -> Vec<T> {
    text.split(separator).map(|number| number.parse().ok().expect("a number")).collect()
}

/// Noise, black and white, or a ramp with some noise: as `golden.txt` says.
fn picture(seed: u64, bytes: usize) -> Vec<u8> {
    let at = |index: usize| {
        let step = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let noise = (splitmix(seed.wrapping_add(step)) >> 56) as u8;
        match seed % 3 {
            0 => noise,
            1 => u8::from(noise >= 128) * 255,
            _ => (index % 224) as u8 + (noise >> 3),
        }
    };
    (0..bytes).map(at).collect()
}

/// The finish of Vigna's splitmix64.
fn splitmix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

struct Random(u64);

impl Random {
    fn new(test: &str, seed: u64) -> Self {
        println!("{test}: seed {seed}");
        Self(splitmix(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        splitmix(self.0)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A part of an axis, from and to.
    fn part(&mut self, side: usize, whole: bool) -> (f32, f32) {
        let from = self.below(side);
        let to = from + 1 + self.below(side - from);
        if whole {
            return (from as f32, to as f32);
        }
        let mut fraction = || self.below(1 << 20) as f32 / (1 << 20) as f32;
        (from as f32 + fraction() / 2.0, to as f32 - fraction() * 0.49)
    }
}

/// Memory that ends at a page which may not be touched.
#[cfg(unix)]
struct GuardedMemory {
    start: *mut u8,
    bytes: usize,
    mapped_bytes: usize,
}

#[cfg(unix)]
impl GuardedMemory {
    fn new(bytes: usize) -> Self {
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a page size");
        let bytes = bytes.next_multiple_of(page);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, whose last page is then closed; nobody else knows of it.
        let start = unsafe {
            let start = libc::mmap(std::ptr::null_mut(), bytes + page, access, kind, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(bytes), page, libc::PROT_NONE), 0);
            start.cast()
        };
        Self { start, bytes, mapped_bytes: bytes + page }
    }

    /// The last bytes before the closed page.
    fn last(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.bytes);
        // SAFETY: within the open part of the mapping, which is zeroed, and borrowed with this value.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(self.bytes - bytes), bytes) }
    }
}

#[cfg(unix)]
impl Drop for GuardedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, to which no slice is left.
        assert_eq!(unsafe { libc::munmap(self.start.cast(), self.mapped_bytes) }, 0);
    }
}
