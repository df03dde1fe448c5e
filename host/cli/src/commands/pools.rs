//! `ostraca pool`: lists the cluster's pools, creates more of them, and copies one to another.

use ostraca_client::{NewPool, PoolInfo};
use serde_json::{Value, json};

use crate::args::{CreatePool, Global, OutputFormat, PoolArgs, PoolCommand};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &PoolArgs) -> Result<Exit, Failure> {
    let (create, name) = match &args.what {
        PoolCommand::List => (None, None),
        PoolCommand::Create(wanted) => (Some(new_pool(wanted)), Some(&wanted.name)),
        PoolCommand::Copy(args) => return super::pool_copy::run(global, args).await,
    };
    let client = connection::connect(global).await?;
    let pools = connection::with_spinner("contacting the node", client.pools(create)).await?;
    connection::disconnect(client).await;
    let created = pools.iter().find(|pool| Some(&pool.name) == name);
    if global.output == OutputFormat::Json {
        output::json(&match created {
            Some(pool) => to_json(pool),
            None => json!({ "pools": pools.iter().map(to_json).collect::<Vec<_>>() }),
        });
        return Ok(Exit::Done);
    }
    if let Some(pool) = created {
        output::line(&format!(
            "the pool {} has the shards {}, for nodes with the role {}",
            pool.name,
            shards(pool),
            pool.role
        ));
        if pool.hosts == 0 {
            output::line(&format!(
                "no live node has this role yet: give it to some with `roles = [\"{}\", …]`, and restart them",
                pool.role
            ));
        }
        return Ok(Exit::Done);
    }
    let rows = pools.iter().map(|pool| {
        [
            pool.name.clone(),
            shards(pool),
            format!("{}/{}", pool.shards_owned, pool.shards),
            pool.role.clone(),
            pool.hosts.to_string(),
            pool.hash.clone(),
            some(&pool.strategy).unwrap_or("the manager's").to_owned(),
            state(pool),
        ]
    });
    let header = ["POOL", "SHARDS", "OWNED", "ROLE", "HOSTS", "HASH", "STRATEGY", "STATE"];
    output::table(header, rows.collect());
    let mut numbered = pools.iter().filter(|pool| !pool.numbers.is_empty()).peekable();
    if numbered.peek().is_some() {
        output::line("");
        let rows = numbered.map(|pool| [pool.name.clone(), numbers(pool)]);
        output::table(["POOL", "NUMBERS OF ITS HOSTS"], rows.collect());
    }
    Ok(Exit::Done)
}

fn new_pool(wanted: &CreatePool) -> NewPool {
    NewPool {
        name: wanted.name.clone(),
        shards: wanted.shards,
        hash: wanted.hash.clone().unwrap_or_default(),
        role: wanted.role.clone().unwrap_or_default(),
        strategy: wanted.strategy.clone().unwrap_or_default(),
        min_hosts: wanted.min_hosts,
    }
}

fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Whether its entities are in use, or where a copy takes them.
fn state(pool: &PoolInfo) -> String {
    match (some(&pool.copied_to), some(&pool.filled_from)) {
        (Some(to), _) if pool.copied => format!("copied to {to}"),
        (Some(to), _) => format!("closed: being copied to {to}"),
        (None, Some(from)) => format!("closed: being filled from {from}"),
        (None, None) => "open".into(),
    }
}

/// Which host has which number, in a pool without a manager.
fn numbers(pool: &PoolInfo) -> String {
    let numbers = pool.numbers.iter().map(|it| format!("{} {}", it.number, it.node));
    numbers.collect::<Vec<_>>().join(", ")
}

/// The first and the last shard.
fn shards(pool: &PoolInfo) -> String {
    format!("{}-{}", pool.first_shard, pool.first_shard + pool.shards.saturating_sub(1))
}

fn to_json(pool: &PoolInfo) -> Value {
    let numbers = pool.numbers.iter().map(|it| json!({ "node": it.node, "number": it.number }));
    json!({
        "numbers": numbers.collect::<Vec<_>>(),
        "name": pool.name, "first_shard": pool.first_shard, "shards": pool.shards,
        "shards_owned": pool.shards_owned, "role": pool.role, "hosts": pool.hosts,
        "hash": pool.hash, "strategy": some(&pool.strategy), "min_hosts": pool.min_hosts,
        "created_unix_ms": Some(pool.created_unix_ms).filter(|at| *at > 0),
        "created_by": some(&pool.created_by), "state": state(pool),
        "copied_to": some(&pool.copied_to), "filled_from": some(&pool.filled_from),
    })
}
