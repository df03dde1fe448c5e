//! Faults under load on real clusters, each injected within its step.
//!
//! They are one program, since each program costs seconds to link. A few clusters of a program run at a time.

use ostraca_process_tests::cluster::Stores;

/// The same attack on a cluster with each pair of stores; with rows in Kubernetes only where that is asked for.
macro_rules! on_each_store {
    ($attack:ident, and_kubernetes) => {
        on_each_store!($attack);

        mod with_rows_in_kubernetes {
            use ostraca_process_tests::cluster::Stores;

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn in_postgres_and_kubernetes() {
                super::$attack(Stores::PostgresAndKubernetes).await;
            }
        }
    };
    ($attack:ident) => {
        mod $attack {
            use ostraca_process_tests::cluster::Stores;

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn in_a_node() {
                super::$attack(Stores::Node).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn in_a_node_and_etcd() {
                super::$attack(Stores::NodeAndEtcd).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn in_postgres() {
                super::$attack(Stores::Postgres).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn in_postgres_and_etcd() {
                super::$attack(Stores::PostgresAndEtcd).await;
            }
        }
    };
}

/// The attack's name, with its stores if they are not in a node.
fn named(attack: &str, stores: Stores) -> String {
    match stores {
        Stores::Node => attack.into(),
        Stores::NodeAndEtcd => format!("{attack}, rows in etcd"),
        Stores::Postgres => format!("{attack}, on PostgreSQL"),
        Stores::PostgresAndEtcd => format!("{attack}, on PostgreSQL and etcd"),
        Stores::PostgresAndKubernetes => format!("{attack}, on PostgreSQL and Kubernetes"),
        Stores::PatroniAndEtcd => format!("{attack}, on Patroni and etcd"),
    }
}

mod arbiter;
mod cuts;
mod database_moves;
mod fail_over;
mod hand_off;
mod health_checks;
mod manager_away;
mod pauses;
mod pods;
mod rolling_upgrade;
mod slow_claims;
mod stores;
