//! One connection: its login, the checks of the server, and the notices that it sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::poll_fn;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

use crate::error::{OpenError, text};
use crate::options::Options;
use crate::row::column;

/// The oldest server that has what the statements use.
const OLDEST_SERVER: i32 = 140_000;

/// Parses the connection string, and adds the settings of every connection.
pub(crate) fn config(options: &Options) -> Result<Config, OpenError> {
    let mut config: Config =
        options.url.parse().map_err(|error: tokio_postgres::Error| OpenError::Url(text(&error)))?;
    config.connect_timeout(options.connect_timeout);
    config.application_name("ostraca");
    Ok(config)
}

/// A connection that is open.
pub(crate) struct Connection {
    pub(crate) client: Client,
    warned: Arc<AtomicBool>,
    notified: Arc<Notify>,
}

impl Connection {
    /// Connects, and checks the server.
    pub(crate) async fn open(options: &Options) -> Result<Self, OpenError> {
        let config = config(options)?;
        let connecting = timeout(options.connect_timeout, config.connect(NoTls));
        let late = || OpenError::Connect(format!("no answer within {:?}", options.connect_timeout));
        let (client, mut connection) = connecting
            .await
            .map_err(|_| late())?
            .map_err(|error| OpenError::Connect(text(&error)))?;
        let warned = Arc::new(AtomicBool::new(false));
        let warnings = warned.clone();
        let notified = Arc::new(Notify::new());
        let notifications = notified.clone();
        tokio::spawn(async move {
            // Ends with the connection.
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                match message {
                    AsyncMessage::Notice(notice) if notice.severity() == "WARNING" => {
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
        let connection = Self { client, warned, notified };
        let checking = timeout(options.call_timeout, check(&connection.client, options));
        checking.await.map_err(|_| late())??;
        Ok(connection)
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

/// Refuses a server on which a commit could be lost, and limits how long it may work on a statement.
async fn check(client: &Client, options: &Options) -> Result<(), OpenError> {
    let millis = options.statement_timeout.as_millis().max(1);
    let limits = format!(
        "SET statement_timeout = {millis}; SET lock_timeout = {millis}; \
         SET idle_in_transaction_session_timeout = {millis}"
    );
    let failed = |error: tokio_postgres::Error| OpenError::statement(&error);
    client.batch_execute(&limits).await.map_err(failed)?;
    let found = client
        .query_typed(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'), \
             pg_is_in_recovery(), current_setting('fsync', true), current_setting('full_page_writes', true), \
             current_setting('transaction_read_only'), current_setting('default_transaction_isolation')",
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
    Ok(())
}
