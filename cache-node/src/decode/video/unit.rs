//! One package decoded: its wanted frames, as soon as each is out, and each known by its packet.

use std::collections::BTreeMap;

use super::av::{CORRUPT, Decoder, Fed, KEY, Picture};
use super::bits::{Parser, Start};
use super::frame::Frame;
use super::package::{Package, Wanted};
use super::{VideoError, av};
use crate::decode::Limits;

/// Why a wanted frame is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The stream is not what the index says: make it anew, of [`Trust::Proved`](super::Trust::Proved). Of one that is proved
    /// already, other pixels than it saw cannot be had: count the frame as bad.
    #[error("the index differs from the stream")]
    Differs,
    /// Something was wrong with what the frame is decoded from. Final for this version, unless damage is asked for.
    #[error("damaged: {0}")]
    Damaged(String),
    /// A picture that this release does not hand out, or a larger one than is allowed. Final until an upgrade.
    #[error("unsupported: {0}")]
    Unsupported(String),
}

/// The receiver wants no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop;

/// Why decoding ended before each wanted frame was handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeEnd {
    /// The receiver wanted no more.
    #[error("stopped")]
    Stopped,
    /// The package is none.
    #[error("no package")]
    Malformed,
    /// There is no decoder for it, or no memory.
    #[error(transparent)]
    Failed(#[from] VideoError),
}

/// Receives each wanted frame once, by its place among the clip's frames.
pub type Sink<'a> = &'a mut dyn FnMut(usize, Result<Frame<'_>, FrameError>) -> Result<(), Stop>;

/// Decodes a package by a fresh decoder of one thread and hands over each wanted frame once, or why there is none.
///
/// Pictures that nobody wants and no other is predicted from are passed over, but with `damaged_keep`. Frames are damaged where the
/// decoder complained of anything else in the unit before them, or of themselves; `damaged_keep` hands those over as they come out. By an
/// index that is predicted, damage is a difference. Frames come in the order in which they are shown.
pub fn decode(package: &[u8], damaged_keep: bool, limits: &Limits, each: Sink<'_>) -> Result<(), DecodeEnd> {
    av::warm_up();
    let package = Package::from_bytes(package).ok_or(DecodeEnd::Malformed)?;
    let (is_as_listed, disposable) = read(&package);
    let met = vec![0; package.wanted.len()];
    let mut unit = Unit {
        package: &package,
        disposable,
        damaged_keep,
        limits,
        met,
        damage: None,
        own_damage: BTreeMap::new(),
        next: 0,
        each,
    };
    if package.is_unseen && !is_as_listed {
        return unit.give_up();
    }
    if unit.is_done() {
        return Ok(());
    }
    let mut decoder = Decoder::open(&package.parameters, true, limits.pixels_max)?;
    let (mut data, mut beside) = (&package.data[..], &package.side[..]);
    for (number, packet) in package.packets.iter().enumerate() {
        let tag = number as u32;
        let (bytes, rest) = data.split_at_checked(packet.bytes as usize).ok_or(DecodeEnd::Malformed)?;
        data = rest;
        let (own, others) = beside.split_at(beside.iter().take_while(|side| side.packet == tag).count());
        beside = others;
        if !damaged_keep && unit.is_needless(tag) {
            continue;
        }
        let side: Vec<_> = own.iter().map(|side| (side.kind, &side.bytes[..])).collect();
        if packet.flags & CORRUPT != 0 {
            unit.hurt(tag, "a packet is not whole");
        }
        let fed = Fed { tag, flags: packet.flags, data: bytes, side: &side };
        if let Some(complaint) = decoder.feed(&fed, &mut |picture| unit.take(&picture))? {
            unit.hurt(tag, complaint);
        }
        if unit.is_done() {
            return Ok(());
        }
    }
    decoder.drain(&mut |picture| unit.take(&picture))?;
    unit.give_up()
}

/// What packets say themselves: whether they are what a container's list made them out to be (decoding can start at the first, and
/// each is one picture), and from which no other picture is predicted.
fn read(package: &Package) -> (bool, Vec<bool>) {
    let mut parser = Parser::new(package.parameters.codec, &package.parameters.extradata);
    let mut data = &package.data[..];
    let mut is_as_listed = true;
    let mut disposable = Vec::with_capacity(package.packets.len());
    for (number, packet) in package.packets.iter().enumerate() {
        let (bytes, rest) = data.split_at(data.len().min(packet.bytes as usize));
        data = rest;
        let info = parser.info(bytes, packet.flags & KEY != 0);
        is_as_listed &= info.shows == 1 && !info.second_field && (number > 0 || info.start != Start::No);
        disposable.push(number > 0 && info.disposable);
    }
    // Parameters that come beside packets were not read.
    if !parser.tells_disposable() || !package.side.is_empty() {
        disposable.fill(false);
    }
    (is_as_listed, disposable)
}

/// What is known of a unit while it is decoded.
struct Unit<'a, 'b> {
    package: &'a Package,
    /// Packets whose picture concerns nobody but who wants it: it is decoded for those alone, and damage to it is theirs.
    disposable: Vec<bool>,
    damaged_keep: bool,
    limits: &'a Limits,
    /// For each wanted frame, how many pictures of its packet came out by now; [`GIVEN`] once it is handed over.
    met: Vec<u32>,
    /// The first packet that something was wrong with, and what.
    damage: Option<(u32, String)>,
    /// What was wrong with disposable pictures.
    own_damage: BTreeMap<u32, String>,
    /// Wanted frames before this one can no longer come.
    next: usize,
    each: Sink<'b>,
}

const GIVEN: u32 = u32::MAX;

impl Unit<'_, '_> {
    fn is_done(&self) -> bool {
        self.met.iter().all(|&met| met == GIVEN)
    }

    /// Half of a stream's pictures are such, by encoders' defaults.
    fn is_needless(&self, tag: u32) -> bool {
        self.disposable[tag as usize] && self.package.wanted.iter().all(|wanted| wanted.tag != tag)
    }

    fn hurt(&mut self, tag: u32, what: impl std::fmt::Display) {
        let is_surplus = self.package.packets.get(tag as usize).is_some_and(|packet| packet.is_surplus);
        if self.disposable.get(tag as usize) == Some(&true) {
            self.own_damage.entry(tag).or_insert_with(|| what.to_string());
        } else if !is_surplus && self.damage.as_ref().is_none_or(|&(before, _)| tag < before) {
            self.damage = Some((tag, what.to_string()));
        }
    }

    fn take(&mut self, picture: &Picture<'_>) -> Result<(), DecodeEnd> {
        let Some(tag) = picture.tag() else { return Ok(()) };
        if picture.is_damaged() {
            self.hurt(tag, "a picture has errors");
        }
        let package = self.package;
        for (place, wanted) in package.wanted.iter().enumerate() {
            if wanted.tag != tag || self.met[place] == GIVEN {
                continue;
            }
            self.met[place] += 1;
            if self.met[place] > wanted.nth {
                self.met[place] = GIVEN;
                let frame = self.judge(picture, place, wanted);
                (self.each)(place, frame).map_err(|Stop| DecodeEnd::Stopped)?;
            }
        }
        Ok(())
    }

    fn judge<'a>(&mut self, picture: &Picture<'a>, place: usize, wanted: &Wanted) -> Result<Frame<'a>, FrameError> {
        // What is shown first comes out first.
        if place < self.next {
            return Err(FrameError::Differs);
        }
        self.next = place;
        let (width, height) = picture.size();
        if u64::from(width) * u64::from(height) > self.limits.pixels_max {
            return Err(FrameError::Unsupported(format!("{width}x{height} pixels are too many")));
        }
        if (width, height) != (wanted.width, wanted.height) {
            return Err(FrameError::Differs);
        }
        let frame = picture.frame().map_err(|format| FrameError::Unsupported(format!("pixel format {format}")))?;
        let before = self.damage.as_ref().filter(|&&(from, _)| from <= wanted.tag).map(|(_, what)| what);
        let damage = before.or_else(|| self.own_damage.get(&wanted.tag));
        match (wanted.hash, damage) {
            (Some(hash), _) if hash != frame.hash() => return Err(FrameError::Differs),
            (Some(_), Some(what)) if !self.damaged_keep => return Err(FrameError::Damaged(what.clone())),
            // Nobody has seen this frame yet: it may be the start that is wrong, and not the stream.
            (None, Some(_)) => return Err(FrameError::Differs),
            _ => {}
        }
        Ok(frame)
    }

    /// No more pictures come. Of those that are missing the index is wrong, damage or not: it was to hold what comes out.
    fn give_up(&mut self) -> Result<(), DecodeEnd> {
        for place in 0..self.met.len() {
            if std::mem::replace(&mut self.met[place], GIVEN) != GIVEN {
                (self.each)(place, Err(FrameError::Differs)).map_err(|Stop| DecodeEnd::Stopped)?;
            }
        }
        Ok(())
    }
}
