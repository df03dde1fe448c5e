//! The order in which a node's parts are built: each after what it needs. How each is built stands in [`super::parts`].

use std::sync::Arc;

use ostraca_core::node::Event;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::Node;
use super::joining::Stores;
use super::network::Network;
use super::parts::Basis;
use super::workers::{self, Workers};
use crate::admin::Desk;
use crate::cache::Cache;
use crate::config::Config;
use crate::control::{self, Control};
use crate::error::NodeError;
use crate::service::Open;
use crate::view::{Events, View};

impl Node {
    /// The first half of [`Node::start`]: the node has all its parts and registers; from here on it is to be stopped, not
    /// dropped.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub async fn begin(config: Config) -> Result<Self, NodeError> {
        let (trust, identity) = config.identity()?;
        let mut basis = Basis::new(config, trust.cluster);
        let roles = basis.config.roles();
        let mut control = Control::prepare(basis.config.word_bounds(), &basis.stats)?;

        let own = basis.own_store().await?;
        let mut network = Network::bind(&basis, &identity, &trust, &control, own.as_ref())?;
        let (mut vital, mut tasks) = (JoinSet::new(), JoinSet::new());
        let server = network.server.clone();
        vital.spawn(async move { server.run().await });

        let cache = basis.cache().await?;
        let remembered = cache.as_ref().map(Cache::load).unwrap_or_default();
        let stores = match own {
            Some(own) => Stores::here(own),
            None => {
                let joining = basis.joining(&network, &control);
                joining.reach(remembered.pool.clone(), &mut tasks).await?
            }
        };
        network.found(&stores);
        basis.config.go_by(&stores.found.settings);
        basis.clock.set(stores.found.time);

        let wasm = basis.wasm().await?;
        let hosting = roles.host.then(|| wasm.clone());
        let workers = Workers::start(&basis, &stores, wasm.status().max_live_instances as usize)?;
        let loader = basis.loader(&stores, hosting.clone(), workers.inputs());
        let gateway = basis.gateway(&network, &stores, &workers, &control, &mut tasks);
        workers.answer_to(&gateway);
        network.serve(&gateway);
        vital.spawn(gateway.clone().run());

        let mut machine = basis.machine(&network, &stores);
        if !remembered.rows.is_empty() {
            loader.remembered(&remembered.types);
            machine.handle(basis.clock.now(), Event::CachedRows(remembered.rows));
        }
        let (failures, failed) = mpsc::unbounded_channel();
        let (shown, view) = watch::channel(Arc::new(View::default()));
        let events = Arc::new(Events::default());
        control.start(control::Parts {
            machine,
            cluster: stores.found.identity.cluster,
            rows: stores.rows.clone(),
            entities: stores.entities.clone(),
            local: stores.local.clone(),
            workers: workers.inputs(),
            gateway: gateway.clone(),
            loader: loader.clone(),
            cache,
            clock: basis.clock.clone(),
            stats: basis.stats.clone(),
            events: events.clone(),
            view: shown,
            dialer: network.dialer.clone(),
            registered: network.registered(),
            failures,
            every: basis.config.renew,
            config: basis.config.clone(),
        });
        tasks.spawn(workers::pass_on(workers.reports, control.input.clone()));

        let desk = Desk {
            deployer: basis.deployer(&stores, wasm, loader),
            status: basis.status(&network, &stores, workers.gauges, hosting, view.clone()),
            store: stores.entities.clone(),
            view: view.clone(),
            events: events.clone(),
            control: control.input.clone(),
            shards: stores.found.shards,
            deploy_wait: basis.config.deploy_wait(),
        };
        network.door.open(Open { gateway: gateway.clone(), desk, takes_messages: roles.gateway });
        Ok(Self {
            summary: basis.summary(&stores),
            server: network.server,
            address: network.address,
            workers: workers.threads,
            control,
            gateway,
            view,
            events,
            types: basis.types,
            shards: stores.found.shards,
            store_away: stores.away,
            vital,
            tasks,
            failed,
            stats: basis.stats,
            store: stores.local,
        })
    }
}
