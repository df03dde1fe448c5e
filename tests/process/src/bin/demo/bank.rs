//! The second part of the demo: transfers between accounts, and a timer, across a kill.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Entity};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::attack::ids_of;
use ostraca_process_tests::bank::{
    Audit, BankSize, TransferLoad, check_no_dead_letters, deploy_bank, open_accounts,
};
use ostraca_process_tests::history::now;
use serde_json::{Value, json};

use crate::{ARRIVAL, SHARDS};

const SIZE: BankSize = BankSize { accounts: 60, closed: 3, cents: 10_000, concurrent: 40 };
/// Number of transfers before and after the kill.
const PART: usize = 300;
/// How long the debit of the late transfer may take. The shards of a dead node have an owner again after 3.6 s.
const DEADLINE_MS: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Transfers while a node dies: prints that none is lost and that the sum of all money remains.
pub(crate) async fn transfers(cluster: &mut Cluster, clients: &[Client]) -> Result<()> {
    deploy_bank(&clients[0]).await?;
    open_accounts(&clients[0], SIZE).await?;
    println!(
        "demo: deployed bank-account and bank-transfer: a transfer debits one account and credits another, by tells"
    );
    let load = TransferLoad::start(clients, 7, SIZE);
    let mut audit = Audit::new(clients[0].session(), Arc::clone(load.transfers()));
    let before = audit.wait_still().await?.balances;
    println!("demo: {before} cents in {} accounts, {} of them closed", SIZE.accounts, SIZE.closed);
    let began = Instant::now();
    load.resume();
    load.progress(PART).await?;

    let view = cluster.wait_settled().await?;
    let manager = view.manager().and_then(|name| cluster.place(name));
    let node = (1..cluster.len()).find(|node| Some(*node) != manager).context("no node to kill")?;
    let (name, store) = (cluster.name(node), cluster.name(0));
    let an_id = |owner: &str, prefix: &str| {
        let shard = (1..=SHARDS).find(|shard| view.owner(*shard) == Some(owner));
        shard.and_then(|shard| ids_of(shard, SHARDS, prefix).next())
    };
    let payer = Entity::new("bank-account", an_id(&name, "payer").context("no account")?);
    let payee = Entity::new("bank-account", an_id(&store, "payee").context("no account")?);
    let late = Entity::new("bank-transfer", an_id(&store, "late").context("no transfer")?);
    let session = clients[0].session();
    for (account, method, body) in
        [(&payer, "open", ""), (&payer, "deposit", "500"), (&payee, "open", "")]
    {
        session.command(account, method, body).await?;
    }

    let at = now();
    cluster.kill_9(node)?;
    tokio::time::sleep(ARRIVAL).await;
    let open = load.transfers().in_doubt(at, |_, _| true);
    println!("demo: killed {name} with SIGKILL while {open} transfers were open");
    let order = json!({
        "from": &*payer.id, "to": &*payee.id, "cents": 500, "within_ms": DEADLINE_MS,
    });
    session.command(&late, "start", order.to_string()).await?;
    println!(
        "demo: {late} must debit {payer}, which was on {name}, within {DEADLINE_MS} ms, or is cancelled"
    );
    let status = async |state: &str| {
        let until = Instant::now() + TIMEOUT;
        loop {
            let reply = session.query(&late, "status", "").await?;
            let status: Value = serde_json::from_slice(&reply.body)?;
            if status["state"] == state {
                return anyhow::Ok(status);
            }
            ensure!(Instant::now() < until, "{late} does not become {state}: {status}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    status("cancelling").await?;
    println!("demo: its timer fired: {late} is being cancelled");
    let status = status("refused").await?;
    let holds = session.query(&payer, "balance", "").await?.body;
    println!(
        "demo: {payer} has another owner: {late} is refused ({}), {payer} holds {} cents",
        status["reason"].as_str().unwrap_or_default(),
        String::from_utf8_lossy(&holds)
    );
    ensure!(holds == "500", "the money did not return");
    cluster.start_node(node)?;
    cluster.wait_settled().await?;
    println!("demo: started {name} again");
    load.progress(PART).await?;
    load.pause().await?;
    let still = audit.wait_still().await?;
    println!(
        "demo: stopped ordering transfers: {} cents in the accounts, {} in {} transfers that wait for their clearing time",
        still.balances, still.in_flight, still.open
    );

    load.end().await?;
    let ends = audit.finish().await?;
    let after = audit.wait_still().await?.balances;
    check_no_dead_letters(&clients[0]).await?;
    let refused: usize = ends.refused.values().sum();
    let line = |what: &str, text: String| println!("  {what:<34}{text}");
    println!("demo: summary of the transfers, after {} s", began.elapsed().as_secs());
    line(
        "transfers",
        format!("{} done, {refused} refused, {} of them refunded", ends.done, ends.refunded),
    );
    line("cents in all accounts", format!("{before} before, {after} after"));
    line("debited or credited twice", "none".to_owned());
    Ok(())
}
