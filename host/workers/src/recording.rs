//! The recorder: writes the inputs and actions of a real node's machines, so that they can be replayed through
//! the core.
//!
//! Off by default (`recording-dir`). Each worker writes one file: frames of a little-endian `u32` length and a
//! postcard-encoded [`Frame`]. A file that a crash has truncated is valid up to its last complete frame.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use ostraca_core::message::Now;
use ostraca_core::shard::{Action, Event, Machine, Ownership, Phase, Settings};
use serde::{Deserialize, Serialize};

/// One frame of a recording. Machines are numbered in the order of their creation, because a shard can have several
/// in succession, and a dropped one may still receive events after its successor was created.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Frame {
    /// A machine was created.
    Created {
        /// Its number in the file.
        machine: u64,
        /// Its creation parameters.
        made: Box<(Settings, Ownership)>,
        /// Its first actions.
        actions: Vec<Action>,
    },
    /// A machine handled an event.
    Step {
        /// The machine's number.
        machine: u64,
        /// The time passed to the machine.
        now: Now,
        /// The event.
        event: Box<Event>,
        /// The machine's actions.
        actions: Vec<Action>,
    },
    /// A machine was removed: it gets no more events.
    Removed {
        /// The machine's number.
        machine: u64,
    },
}

/// Writes a recording.
#[derive(Debug)]
pub(crate) struct Recorder(BufWriter<File>);

impl Recorder {
    pub(crate) fn create(directory: &Path, worker: usize, incarnation: u64) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let path =
            directory.join(format!("incarnation-{incarnation:06}-worker-{worker:02}.events"));
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

/// Replays a recording through the core. Returns the number of steps.
///
/// # Errors
/// The step at which the core acts differently, or why the file is unreadable.
pub fn replay(path: &Path) -> Result<u64, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let mut machines: HashMap<u64, Machine> = HashMap::new();
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
        let unknown =
            |number| format!("step {steps}: machine {number} was not created, or has ended");
        let (number, expected) = match frame {
            Frame::Created { machine, made, actions } => {
                machines.insert(machine, Machine::new(made.0, made.1));
                (machine, actions)
            }
            Frame::Step { machine, now, event, actions } => {
                machines.get_mut(&machine).ok_or_else(|| unknown(machine))?.handle(now, *event);
                (machine, actions)
            }
            Frame::Removed { machine } => {
                let gone = machines.remove(&machine).ok_or_else(|| unknown(machine))?;
                if !matches!(gone.phase(), Phase::Stopped | Phase::Lost) {
                    return Err(format!("step {steps}: machine {machine} has not ended"));
                }
                continue;
            }
        };
        let machine = machines.get_mut(&number).ok_or_else(|| unknown(number))?;
        let mut actions = Vec::new();
        while let Some(action) = machine.poll() {
            actions.push(action);
        }
        steps += 1;
        if actions != expected {
            let owner = machine.ownership();
            let (shard, epoch) = (&owner.shard, owner.epoch.0);
            return Err(format!(
                "step {steps}, shard {shard}, epoch {epoch}: {actions:?}, recorded {expected:?}"
            ));
        }
    }
    Ok(steps)
}
