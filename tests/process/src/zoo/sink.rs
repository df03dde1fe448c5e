//! A server for the attacks that make HTTP calls.

use anyhow::Result;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A server that accepts connections and never answers, until it is dropped.
#[derive(Debug)]
pub struct Sink {
    pub(super) port: u16,
    _tasks: JoinSet<()>,
}

impl Sink {
    /// Starts the server.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut held = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                held.spawn(hold(stream));
                while held.try_join_next().is_some() {}
            }
        });
        Ok(Self { port, _tasks: tasks })
    }
}

/// Reads until the other side closes.
async fn hold(mut stream: TcpStream) {
    // How it ends does not matter.
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
}
