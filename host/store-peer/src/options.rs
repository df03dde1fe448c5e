//! The settings of both sides.

use std::time::Duration;

/// Settings of the client side, each with a default.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long a call may remain unanswered before it completes with an unknown outcome. Its link is dropped only if a
    /// subsequent ping also remains unanswered for that time. Default 5 s.
    pub call_timeout: Duration,
    /// How long establishing a link may take. Default 5 s.
    pub connect_timeout: Duration,
    /// The pause between a broken link and the next attempt; doubles with each failure. Default 50 ms.
    pub backoff: Duration,
    /// The maximum of that pause. Default 1 s.
    pub max_backoff: Duration,
    /// Maximum size in bytes of the fragment of a blob in one call. Default 1 MiB.
    pub blob_fragment_bytes: usize,
    /// Maximum number of blobs that are fetched or stored concurrently; further ones wait. Default 2.
    pub max_concurrent_blobs: usize,
    /// How long the store may hold a watch's poll before it responds without changes; at most half of
    /// `call_timeout`. Default 2 s.
    pub watch_poll_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(1),
            blob_fragment_bytes: 1 << 20,
            max_concurrent_blobs: 2,
            watch_poll_timeout: Duration::from_secs(2),
        }
    }
}

/// Settings of the server side, each with a default. All apply per link.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Maximum size in bytes of a call that carries neither records nor fragments of blobs. Default 1 MiB.
    pub max_request_bytes: usize,
    /// Maximum number of records per page of a scan. Default 4,096.
    pub max_page_records: usize,
    /// Maximum size in bytes of a page of a scan, unless a single record is larger. Default 4 MiB.
    pub max_page_bytes: usize,
    /// Maximum size in bytes of a blob. Default 64 MiB.
    pub max_blob_bytes: usize,
    /// Maximum number of blobs being received, and separately of blobs being read. Default 2. Beyond that, the
    /// oldest is dropped. Memory: `max_blob_bytes` each.
    pub max_blob_transfers: usize,
    /// Maximum number of watches. Default 64.
    pub max_watches: usize,
    /// Maximum number of changes per response to a watch. Default 64. Memory: at most 64 KiB each.
    pub max_watch_events: usize,
    /// Maximum time for which a watch's poll is held. Default 30 s.
    pub max_watch_poll_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_request_bytes: 1 << 20,
            max_page_records: 4096,
            max_page_bytes: 4 << 20,
            max_blob_bytes: 64 << 20,
            max_blob_transfers: 2,
            max_watches: 64,
            max_watch_events: 64,
            max_watch_poll_timeout: Duration::from_secs(30),
        }
    }
}
