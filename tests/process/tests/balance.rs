//! Shards are spread evenly after each join and leave, and no more of them move than must.

use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{ALL, NO_STORE, Options, View};

const SHARDS: u32 = 100;

async fn balanced(cluster: &mut Cluster, hosts: usize) -> View {
    let wait = cluster.wait("the shards are balanced", |view| {
        view.hosts().len() == hosts && view.settled(SHARDS) && view.balanced()
    });
    wait.await.expect("balanced")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_moves_no_more_than_the_new_nodes_share_and_a_leave_only_what_was_there() {
    let roles = [ALL, NO_STORE, NO_STORE, NO_STORE, NO_STORE];
    let options = Options { at_once: 1, shards: SHARDS, ..Options::new("balance", &roles) };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    let mut before = balanced(&mut cluster, 1).await;
    for nodes in 1..roles.len() {
        cluster.start_node(nodes).expect("start");
        let after = balanced(&mut cluster, nodes + 1).await;
        let (moved, most) = (after.moved_since(&before), (SHARDS as usize).div_ceil(nodes + 1));
        println!("{} nodes: {:?}, {moved} moved of at most {most}", nodes + 1, after.owned());
        assert!(moved <= most, "{moved} moved when the {}th node joined: {after}", nodes + 1);
        before = after;
    }
    // One leaves in good order, one dies.
    for (node, dies) in [(4, false), (3, true)] {
        let name = cluster.name(node);
        let owned = before.owned_by(&name);
        if dies { cluster.kill_9(node) } else { cluster.term(node) }.expect("end");
        let after = balanced(&mut cluster, node).await;
        let moved = after.moved_since(&before);
        println!("without {name}: {:?}, {moved} moved, it had {owned}", after.owned());
        assert_eq!(moved, owned, "only what {name} had moves: {after}");
        before = after;
    }
    cluster.stop().expect("stop");
}
