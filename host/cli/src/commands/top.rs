//! `ostraca top`: shows live what the nodes do, which methods are slow and which entities are hot.
//!
//! Nodes report what they have done since they started; rates are the differences between two reports, except those of
//! the hottest entities, which nodes measure. On a terminal the screen is redrawn in place; elsewhere, or with `--once`,
//! one view is printed as text.

mod rates;
mod screen;
mod text;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ostraca_client::{AdminError, Client, Figures, NodeFigures};
use serde_json::json;

use crate::args::{Global, OutputFormat, Top};
use crate::failure::{Exit, Failure};
use crate::{connection, output};
use rates::View;

pub(crate) async fn run(global: &Global, args: &Top) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let interval = args.interval;
    let live = !args.once && global.output == OutputFormat::Table;
    let result = match live && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        true => screen::run(&client, interval).await,
        false => print(global, args, &client).await,
    };
    connection::disconnect(client).await;
    result?;
    Ok(Exit::Done)
}

/// Prints views: one as text, or as JSON one after the other.
async fn print(global: &Global, args: &Top, client: &Client) -> Result<(), Failure> {
    let mut sampler = Sampler::default();
    sampler.sample(connection::with_spinner("contacting the node", client.figures()).await?);
    loop {
        let measuring = next_figures(client, args.interval);
        let figures = connection::with_spinner("measuring", measuring).await?;
        let view = sampler.sample(figures);
        match global.output {
            OutputFormat::Table => {
                text::print(&view);
                return Ok(());
            }
            OutputFormat::Json => output::json_line(&json!(view)),
        }
        if args.once {
            return Ok(());
        }
    }
}

/// Makes views from the reports that come one after the other.
#[derive(Debug, Default)]
struct Sampler {
    /// The last report of each node, and when it came.
    last: BTreeMap<String, (Instant, NodeFigures)>,
}

impl Sampler {
    /// The view since the nodes' last reports. A node without one is shown without rates.
    fn sample(&mut self, figures: Figures) -> View {
        let now = Instant::now();
        let view = View::between(&self.last, &figures, now);
        for node in figures.nodes {
            self.last.insert(node.node.clone(), (now, node));
        }
        view
    }
}

/// Asks for the next report, a moment later.
async fn next_figures(client: &Client, interval: Duration) -> Result<Figures, AdminError> {
    tokio::time::sleep(interval).await;
    client.figures().await
}
