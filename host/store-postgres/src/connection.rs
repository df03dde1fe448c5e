//! One connection: its login, the checks of the server, and the notices that it sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::poll_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::Severity;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{OpenError, text};
use crate::fail_over::{self, REPLICATED, TIMELINE};
use crate::health::Health;
use crate::health::{History, ServerState};
use crate::options::{Options, Tls};
use crate::row::column;
use crate::tls;

/// The oldest server that has what the statements use.
const OLDEST_SERVER: i32 = 140_000;

/// Parses the connection string, and adds the settings of every connection.
async fn config(options: &Options) -> Result<Config, OpenError> {
    let mut config: Config =
        options.url.parse().map_err(|error: tokio_postgres::Error| OpenError::Url(text(&error)))?;
    if let Some(path) = &options.password_file {
        let read = tokio::fs::read_to_string(path).await;
        let failed = |source| OpenError::File { path: path.clone(), source };
        config.password(read.map_err(failed)?.trim_end_matches(['\r', '\n']));
    }
    // Each host must get a chance within the time for all of them.
    let hosts = config.get_hosts().len().max(config.get_hostaddrs().len()).max(1);
    config.connect_timeout(options.connect_timeout / u32::try_from(hosts).unwrap_or(u32::MAX));
    config.application_name("ostraca");
    config.ssl_mode(match options.tls {
        Tls::Off => SslMode::Disable,
        Tls::Verify { .. } => SslMode::Require,
    });
    Ok(config)
}

/// A connection that is open.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) server: ServerState,
    warned: Arc<AtomicBool>,
    notified: Arc<Notify>,
}

impl Connection {
    /// Connects, and checks the server against what this process knows of it.
    pub(crate) async fn open_again(options: &Options, health: &Health) -> Result<Self, OpenError> {
        let connection = Self::open(options).await?;
        let checking = fail_over::check_again(&connection.client, health, connection.server);
        timeout(options.call_timeout, checking).await.map_err(|_| late(options.call_timeout))??;
        Ok(connection)
    }

    /// Connects, and checks the server's settings.
    pub(crate) async fn open(options: &Options) -> Result<Self, OpenError> {
        let config = config(options).await?;
        let connecting = connect(&config, &options.tls);
        let connecting = timeout(options.connect_timeout, connecting).await;
        let connected = connecting.map_err(|_| late(options.connect_timeout))??;
        let (client, warned, notified) = connected;
        let checking = timeout(options.call_timeout, check(&client, options));
        let server = checking.await.map_err(|_| late(options.call_timeout))??;
        Ok(Self { client, server, warned, notified })
    }

    /// Waits for the next notification (`LISTEN`), or for the end of the connection.
    pub(crate) async fn notified(&self) {
        self.notified.notified().await;
    }

    /// Whether the server has warned since the last call. A warning during a commit may say that the wait for a
    /// standby was cancelled: then the commit may be lost.
    pub(crate) fn take_warning(&self) -> bool {
        self.warned.swap(false, Ordering::SeqCst)
    }
}

fn late(limit: Duration) -> OpenError {
    OpenError::Connect(format!("no answer within {limit:?}"))
}

/// The client, whether the server has warned, and what is told of notifications.
type Connected = (Client, Arc<AtomicBool>, Arc<Notify>);

async fn connect(config: &Config, tls: &Tls) -> Result<Connected, OpenError> {
    let failed = |error: tokio_postgres::Error| OpenError::connect(&error);
    match tls {
        Tls::Off => {
            let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
            Ok(drive(client, connection))
        }
        Tls::Verify { ca } => {
            let tls = MakeRustlsConnect::new(tls::config(ca.as_deref()).await?);
            let (client, connection) = config.connect(tls).await.map_err(failed)?;
            Ok(drive(client, connection))
        }
    }
}

/// Drives a connection in a task, which ends with it.
fn drive<S, T>(client: Client, mut connection: tokio_postgres::Connection<S, T>) -> Connected
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let warned = Arc::new(AtomicBool::new(false));
    let notified = Arc::new(Notify::new());
    let (warnings, notifications) = (warned.clone(), notified.clone());
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                // The other severity is a word in the server's language.
                AsyncMessage::Notice(notice)
                    if notice.parsed_severity() == Some(Severity::Warning) =>
                {
                    tracing::warn!(message = notice.message(), "PostgreSQL warns");
                    warnings.store(true, Ordering::SeqCst);
                }
                AsyncMessage::Notification(_) => notifications.notify_one(),
                _ => {}
            }
        }
        // Whoever waits learns that the connection is lost.
        notifications.notify_one();
    });
    (client, warned, notified)
}

/// Refuses a server on which a commit could be lost, and limits how long it may work on a statement.
async fn check(client: &Client, options: &Options) -> Result<ServerState, OpenError> {
    let millis = options.statement_timeout.as_millis().max(1);
    let limits = format!(
        "SET statement_timeout = {millis}; SET lock_timeout = {millis}; \
         SET idle_in_transaction_session_timeout = {millis}"
    );
    let failed = |error: tokio_postgres::Error| OpenError::statement(&error);
    client.batch_execute(&limits).await.map_err(failed)?;
    let found = client
        .query_typed(
            &format!(
                "SELECT current_setting('server_version_num')::int, current_setting('server_version'), \
                 pg_is_in_recovery(), current_setting('fsync', true), current_setting('full_page_writes', true), \
                 current_setting('transaction_read_only'), current_setting('default_transaction_isolation'), \
                 (SELECT system_identifier FROM pg_control_system()), \
                 CASE WHEN pg_is_in_recovery() THEN 0 ELSE {TIMELINE} END, {REPLICATED}"
            ),
            &[],
        )
        .await
        .map_err(failed)?;
    let Some(row) = found.first() else {
        return Err(OpenError::Statement("the server did not say its settings".into()));
    };
    if column::<i32>(row, 0)? < OLDEST_SERVER {
        return Err(OpenError::OldServer { found: column(row, 1)? });
    }
    if column(row, 2)? {
        return Err(OpenError::Standby);
    }
    for (at, setting) in [(3, "fsync"), (4, "full_page_writes")] {
        let value: Option<String> = column(row, at)?;
        if let Some(value) = value.filter(|value| value != "on") {
            return Err(OpenError::UnsafeSetting { setting, value, needed: "on" });
        }
    }
    if column::<String>(row, 5)? != "off" {
        return Err(OpenError::ReadOnly);
    }
    let isolation: String = column(row, 6)?;
    if isolation != "read committed" && isolation != "serializable" {
        let setting = "default_transaction_isolation";
        let needed = "'read committed'";
        return Err(OpenError::UnsafeSetting { setting, value: isolation, needed });
    }
    let history = History { system: column(row, 7)?, timeline: column(row, 8)? };
    Ok(ServerState { history, replicated: column(row, 9)? })
}
