//! The recorder: what a real node's machines were told and did, so that it can be replayed through the core.
//!
//! Off by default (`record`). One file a worker: frames of a little-endian `u32` length and a postcard-encoded
//! [`Frame`]. A file cut off by a crash is whole up to its last whole frame.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use ostraca_sharding::message::Now;
use ostraca_sharding::shard::{Action, Event, Machine, Owner, Settings};
use serde::{Deserialize, Serialize};

/// One frame of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Frame {
    /// A machine was made; it takes the place of the one before it with the same shard.
    Machine(Box<(Settings, Owner)>, Vec<Action>),
    /// A machine was told something.
    Step {
        /// The shard's number.
        shard: u32,
        /// When.
        now: Now,
        /// What.
        event: Box<Event>,
        /// What it did.
        actions: Vec<Action>,
    },
}

/// Writes a recording.
#[derive(Debug)]
pub(crate) struct Recorder(BufWriter<File>);

impl Recorder {
    pub(crate) fn create(directory: &Path, worker: usize, incarnation: u64) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let path = directory.join(format!("life-{incarnation:06}-worker-{worker:02}.events"));
        Ok(Self(BufWriter::new(File::create(path)?)))
    }

    pub(crate) fn write(&mut self, frame: &Frame) -> io::Result<()> {
        let bytes = postcard::to_stdvec(frame).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.0.write_all(&length.to_le_bytes())?;
        self.0.write_all(&bytes)
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Replays a recording through the core; gives the number of steps.
///
/// # Errors
/// Says at which step the core did something else, or that the file cannot be read.
pub fn replay(path: &Path) -> Result<u64, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let mut machines: std::collections::HashMap<u32, Machine> = Default::default();
    let mut steps = 0;
    let mut rest = bytes.as_slice();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let Some((frame, after)) = after.split_at_checked(u32::from_le_bytes(*length) as usize)
        else {
            break;
        };
        rest = after;
        let frame =
            postcard::from_bytes(frame).map_err(|error| format!("step {steps}: {error}"))?;
        let (shard, expected) = match frame {
            Frame::Machine(made, actions) => {
                let shard = made.1.shard.shard.0;
                machines.insert(shard, Machine::new(made.0, made.1));
                (shard, actions)
            }
            Frame::Step { shard, now, event, actions } => {
                let machine = machines.get_mut(&shard).ok_or("a step before its machine")?;
                machine.handle(now, *event);
                (shard, actions)
            }
        };
        steps += 1;
        let machine = machines.get_mut(&shard).ok_or("a step before its machine")?;
        let mut actions = Vec::new();
        while let Some(action) = machine.poll() {
            actions.push(action);
        }
        if actions != expected {
            return Err(format!("step {steps}, shard {shard}: {actions:?}, recorded {expected:?}"));
        }
    }
    Ok(steps)
}
