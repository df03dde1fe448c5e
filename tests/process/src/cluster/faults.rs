//! Faults of nodes: starts, kills, pauses, stops and heals them.

use std::process::ExitStatus;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::{Cluster, Release, TIMEOUT};
use crate::node::NodeProcess;

impl Cluster {
    /// Starts a node that is not running, at its previous address, and waits until it is ready.
    ///
    /// # Errors
    /// The node's error.
    pub fn start_node(&mut self, node: usize) -> Result<()> {
        let member = &mut self.members[node];
        ensure!(member.node.is_none(), "n{} is already running", node + 1);
        let mut program = member.release.program()?;
        if let Some((preload, _)) = &member.slow {
            preload.on(&mut program);
        }
        member.node = Some(NodeProcess::start_with(program, &member.home)?);
        Ok(())
    }

    /// Changes the program of a node, which runs it from its next start on.
    pub fn install(&mut self, node: usize, release: Release) {
        self.members[node].release = release;
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// If it is not running.
    pub fn kill_9(&mut self, node: usize) -> Result<()> {
        self.take(node)?.kill_9()
    }

    /// Sends SIGTERM and waits until the node has ended.
    ///
    /// # Errors
    /// If it does not stop gracefully.
    pub fn term(&mut self, node: usize) -> Result<()> {
        let status = self.take(node)?.stop()?;
        ensure!(status.success(), "n{} ended with {status}", node + 1);
        Ok(())
    }

    /// Sends SIGTERM without waiting: the node drains.
    ///
    /// # Errors
    /// If it is not running.
    pub fn send_sigterm(&self, node: usize) -> Result<()> {
        self.process(node)?.signal(Signal::SIGTERM)
    }

    /// Sends SIGSTOP: the process exists but does nothing.
    ///
    /// # Errors
    /// If it is not running, or does not stop.
    pub fn pause(&mut self, node: usize) -> Result<()> {
        self.process(node)?.pause()?;
        self.members[node].paused = true;
        Ok(())
    }

    /// Sends SIGCONT.
    ///
    /// # Errors
    /// If it is not running.
    pub fn resume(&mut self, node: usize) -> Result<()> {
        self.process(node)?.signal(Signal::SIGCONT)?;
        self.members[node].paused = false;
        Ok(())
    }

    /// Heals everything: the network works again, and each of these nodes runs again.
    ///
    /// # Errors
    /// The error of a node that does not start.
    pub fn heal(&mut self, nodes: &[usize]) -> Result<()> {
        if let Some(network) = &self.network {
            network.heal();
        }
        self.servers.heal();
        for node in nodes {
            if self.members[*node].paused {
                self.resume(*node)?;
            }
            if !self.runs(*node) {
                drop(self.members[*node].node.take());
                self.start_node(*node)?;
            }
        }
        Ok(())
    }

    /// Whether the node's process exists.
    #[must_use]
    pub fn runs(&mut self, node: usize) -> bool {
        self.members[node].node.as_mut().is_some_and(NodeProcess::runs)
    }

    /// Waits until a node that was told to stop has ended.
    ///
    /// # Errors
    /// If it does not end.
    pub fn ended(&mut self, node: usize) -> Result<()> {
        let status = self.exited(node)?;
        ensure!(status.success(), "n{} ended with {status}", node + 1);
        Ok(())
    }

    /// How a node has ended by itself.
    ///
    /// # Errors
    /// If it does not end.
    pub fn exited(&mut self, node: usize) -> Result<ExitStatus> {
        self.take(node)?.ended(TIMEOUT)
    }

    /// The node's process.
    ///
    /// # Errors
    /// If it is not running.
    pub fn process(&self, node: usize) -> Result<&NodeProcess> {
        self.members[node].node.as_ref().with_context(|| format!("n{} is not running", node + 1))
    }

    fn take(&mut self, node: usize) -> Result<NodeProcess> {
        self.members[node].paused = false;
        self.members[node].node.take().with_context(|| format!("n{} is not running", node + 1))
    }
}
